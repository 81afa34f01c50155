//! Small programs for the guest, encoded by hand so that they need no compiler.

/// The address of a program in memory.
const ADDRESS: u64 = 0x40_0000;
/// The sizes of an ELF file's header and of one program header.
const HEADERS: [u64; 2] = [64, 56];

/// Returns an ELF file for Linux that begins with this code, followed by any data.
pub(super) fn program(code: &[u8]) -> Vec<u8> {
    let [header, program_header] = HEADERS;
    let size = header + program_header + code.len() as u64;
    // 64 bits, little-endian, an executable for x86-64.
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for field in [ADDRESS + header + program_header, header, 0] {
        file.extend(field.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for field in [header as u16, program_header as u16, 1, 64, 0, 0] {
        file.extend(field.to_le_bytes());
    }
    // One segment to load, that can be read and executed: the whole file.
    for field in [1u32, 5] {
        file.extend(field.to_le_bytes());
    }
    for field in [0, ADDRESS, ADDRESS, size, size, 0x1000] {
        file.extend(field.to_le_bytes());
    }
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::{pages, ptwrite, session};
    use object::{Object, ObjectSegment};

    #[test]
    fn the_program_is_an_elf_file_that_begins_with_the_code() {
        for code in [session::CODE, pages::CODE, ptwrite::CODE] {
            let bytes = program(code);
            let file = object::File::parse(&bytes[..]).unwrap();
            let segment = file.segments().next().unwrap();
            let at = (file.entry() - segment.address()) as usize;
            assert_eq!(segment.data().unwrap()[at..], *code);
            assert_eq!(segment.size(), bytes.len() as u64);
        }
    }
}
