use super::*;

/// The offset and size of a field in bytes, typed from the text of the ABI.
type HeaderField = (usize, usize);

/// The places of the fields in a file header and in a program header.
struct HeaderLayout {
    class: u8,
    header: usize,
    entry: usize,
    phoff: HeaderField,
    phnum: HeaderField,
    p_offset: HeaderField,
    p_vaddr: HeaderField,
    p_filesz: HeaderField,
}

const LAYOUTS: [HeaderLayout; 2] = [
    HeaderLayout {
        class: 1,
        header: 52,
        entry: 32,
        phoff: (28, 4),
        phnum: (44, 2),
        p_offset: (4, 4),
        p_vaddr: (8, 4),
        p_filesz: (16, 4),
    },
    HeaderLayout {
        class: 2,
        header: 64,
        entry: 56,
        phoff: (32, 8),
        phnum: (56, 2),
        p_offset: (8, 8),
        p_vaddr: (16, 8),
        p_filesz: (32, 8),
    },
];

fn set(bytes: &mut [u8], at: usize, (offset, size): HeaderField, value: u64) {
    bytes[at + offset..at + offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// Returns a file with a PT_LOAD, a PT_NOTE, and a PT_LOAD without bytes in the file.
fn file(layout: &HeaderLayout) -> Vec<u8> {
    let mut bytes = vec![0; layout.header + 3 * layout.entry];
    bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', layout.class, 1, 1]);
    set(&mut bytes, 0, layout.phoff, layout.header as u64);
    set(&mut bytes, 0, layout.phnum, 3);
    for (index, kind, vaddr, size) in [(0, 1, 0x40_0000, 5), (1, 4, 0, 5), (2, 1, 0x3f_f000, 0)] {
        let at = layout.header + index * layout.entry;
        set(&mut bytes, at, (0, 4), kind);
        set(&mut bytes, at, layout.p_offset, 0x10);
        set(&mut bytes, at, layout.p_vaddr, vaddr);
        set(&mut bytes, at, layout.p_filesz, size);
    }
    bytes
}

#[test]
fn finds_the_segments_with_bytes_of_both_classes_and_where_a_file_is_cut() {
    let loaded = Segment { number: 0, offset: 0x10, size: 5, vaddr: 0x40_0000 };
    for layout in &LAYOUTS {
        let file = file(layout);
        let whole = Segments { loaded: vec![loaded], lowest: Some(0x3f_f000), cut: None };
        assert_eq!(segments(&*file), Ok(whole));
        for len in 0..file.len() {
            let expected = match len {
                0..16 => Err(ElfError::NoIdentification),
                len if len < layout.header => Err(ElfError::FileHeader),
                len => Ok((len - layout.header) / layout.entry),
            };
            let found = segments(&file[..len]);
            assert_eq!(found.clone().map(|found| found.cut.unwrap().into()), expected, "{len}");
            if let Ok(found) = found {
                assert_eq!(found.loaded.first(), (found.cut != Some(0)).then_some(&loaded), "{len}");
            }
        }
    }
}

#[test]
fn headers_may_lie_at_any_offset_but_not_above_the_largest() {
    for layout in &LAYOUTS {
        let mut file = file(layout);
        let table = file[layout.header..].to_vec();
        file.push(0);
        set(&mut file, 0, layout.phoff, layout.header as u64 + 1);
        file.splice(layout.header + 1.., table);
        assert_eq!(segments(&*file).unwrap().loaded.len(), 1);
    }
    let mut file = file(&LAYOUTS[1]);
    set(&mut file, 0, LAYOUTS[1].phoff, 1 << 63);
    assert_eq!(segments(&*file), Err(ElfError::Table(1 << 63)));
}

#[test]
fn what_is_not_an_elf_file_of_32_or_64_bits_is_refused() {
    for (file, error) in [
        (&b"\x7fELF\x02"[..], ElfError::NoIdentification),
        (b"#!/bin/sh and so on", ElfError::NotElf),
        (b"\x7fELF\x03\x01\x01\0\0\0\0\0\0\0\0\0", ElfError::Class(3)),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", ElfError::FileHeader),
    ] {
        assert_eq!(segments(file), Err(error));
    }
}

#[test]
fn the_shift_moves_the_lowest_segment_to_the_base() {
    let segments = Segments { lowest: Some(0x1000), ..Segments::default() };
    assert_eq!((segments.shift(0), segments.shift(0x5000)), (0, 0x4000));
}

#[test]
fn the_abi_is_that_of_the_class_and_the_machine() {
    for (class, version, machine, expected) in [
        (2, 1, 62, Some(Abi::X64)),
        (2, 1, 3, Some(Abi::X64)),
        (1, 1, 62, Some(Abi::X32)),
        (1, 1, 3, Some(Abi::Ia32)),
        (1, 1, 40, None),
        (3, 1, 62, None),
        (2, 0, 62, None),
    ] {
        let mut header = [0; ABI_BYTES];
        header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, version]);
        set(&mut header, 0, (18, 2), machine);
        assert_eq!(abi(&header), expected, "{class} {version} {machine}");
        assert_eq!(abi(&header[..15]), None);
    }
}
