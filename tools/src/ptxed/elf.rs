//! ELF files, as far as code comes from them: the segments to load.
//!
//! Source: System V Application Binary Interface, "ELF Header" and "Program Header".

/// A PT_LOAD segment that has bytes in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where in the file.
    pub offset: u64,
    /// How many bytes of it.
    pub size: u64,
    /// The address that the file gives it.
    pub vaddr: u64,
}

const PT_LOAD: u64 = 1;

/// How many bytes a program header has, and where fields are: offset and size in bytes.
struct Layout {
    header: u64,
    phoff: (usize, usize),
    phentsize: (usize, usize),
    phnum: (usize, usize),
    p_offset: (usize, usize),
    p_vaddr: (usize, usize),
    p_filesz: (usize, usize),
}

const ELF32: Layout = Layout {
    header: 32,
    phoff: (28, 4),
    phentsize: (42, 2),
    phnum: (44, 2),
    p_offset: (4, 4),
    p_vaddr: (8, 4),
    p_filesz: (16, 4),
};

const ELF64: Layout = Layout {
    header: 56,
    phoff: (32, 8),
    phentsize: (54, 2),
    phnum: (56, 2),
    p_offset: (8, 8),
    p_vaddr: (16, 8),
    p_filesz: (32, 8),
};

/// The segments of a little-endian file, in its order; `None` for something else, and for one whose program headers
/// overlap.
pub fn segments(file: &[u8]) -> Option<Vec<Segment>> {
    let layout = match file {
        [0x7f, b'E', b'L', b'F', 1, ..] => &ELF32,
        [0x7f, b'E', b'L', b'F', 2, ..] => &ELF64,
        _ => return None,
    };
    let table = field(file, 0, layout.phoff)?;
    let (size, count) = (field(file, 0, layout.phentsize)?, field(file, 0, layout.phnum)?);
    if size < layout.header && count > 1 {
        return None;
    }
    let mut segments = Vec::new();
    for index in 0..count {
        let header = usize::try_from(table.checked_add(index.checked_mul(size)?)?).ok()?;
        let segment = Segment {
            offset: field(file, header, layout.p_offset)?,
            size: field(file, header, layout.p_filesz)?,
            vaddr: field(file, header, layout.p_vaddr)?,
        };
        if field(file, header, (0, 4))? == PT_LOAD && segment.size != 0 {
            segments.push(segment);
        }
    }
    Some(segments)
}

fn field(file: &[u8], at: usize, (offset, size): (usize, usize)) -> Option<u64> {
    let start = at.checked_add(offset)?;
    let bytes = file.get(start..start.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(wide: bool) -> Vec<u8> {
        let layout = if wide { &ELF64 } else { &ELF32 };
        let (header, entry) = if wide { (64, 56) } else { (52, 32) };
        let mut bytes = vec![0; header + 3 * entry];
        let mut set = |at: usize, (offset, size): (usize, usize), value: u64| {
            bytes[at + offset..at + offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        set(0, (0, 4), 0x464c_457f);
        set(0, (4, 1), if wide { 2 } else { 1 });
        set(0, layout.phoff, header as u64);
        set(0, layout.phentsize, entry as u64);
        set(0, layout.phnum, 3);
        // PT_LOAD, PT_NOTE, PT_LOAD without bytes in the file.
        for (index, kind, size) in [(0, 1, 5), (1, 4, 5), (2, 1, 0)] {
            let at = header + index * entry;
            set(at, (0, 4), kind);
            set(at, layout.p_offset, 0x10);
            set(at, layout.p_vaddr, 0x40_0000);
            set(at, layout.p_filesz, size);
        }
        bytes
    }

    #[test]
    fn finds_the_segments_with_bytes_of_both_classes() {
        for wide in [false, true] {
            let file = file(wide);
            let expected = [Segment { offset: 0x10, size: 5, vaddr: 0x40_0000 }];
            assert_eq!(segments(&file).as_deref(), Some(&expected[..]));
            for cut in 0..file.len() {
                assert!(segments(&file[..cut]).is_none_or(|segments| segments == expected), "{cut}");
            }
        }
    }

    #[test]
    fn refuses_program_headers_that_overlap() {
        for wide in [false, true] {
            let layout = if wide { &ELF64 } else { &ELF32 };
            let mut file = file(wide);
            for size in [0, layout.header as u8 - 1] {
                file[layout.phentsize.0] = size;
                assert_eq!(segments(&file), None, "{size}");
            }
        }
    }

    #[test]
    fn what_does_not_begin_like_an_elf_file_is_none() {
        for file in [&b""[..], b"notelf", b"\x7fELF", b"\x7fELF\x03"] {
            assert_eq!(segments(file), None);
        }
    }
}
