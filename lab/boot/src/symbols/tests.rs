use super::*;
use alloc::vec;

/// Returns an ELF file with four sections: none, .bss (not in the file), .strtab, .symtab.
fn elf(symbols: &[(u32, u8, u16, u64, u64)], names: &[u8]) -> Vec<u8> {
    let mut elf = vec![0; 0x40];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    let names_at = elf.len();
    elf.extend(names);
    let symbols_at = elf.len();
    for &(name, info, section, address, size) in symbols {
        elf.extend(name.to_le_bytes());
        elf.extend([info, 0]);
        elf.extend(section.to_le_bytes());
        elf.extend(address.to_le_bytes());
        elf.extend(size.to_le_bytes());
    }
    let headers_at = elf.len();
    let size = headers_at - symbols_at;
    for (kind, offset, size, link) in [
        (0, 0, 0, 0),
        (8u32, 0x1000_0000, 0x1000, 0),
        (SECTION_STRTAB, names_at, names.len(), 0),
        (SECTION_SYMTAB, symbols_at, size, 2u32),
    ] {
        let mut header = [0; 64];
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
        header[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
        header[0x28..0x2c].copy_from_slice(&link.to_le_bytes());
        elf.extend(header);
    }
    elf[0x28..0x30].copy_from_slice(&(headers_at as u64).to_le_bytes());
    elf[0x3a] = 64;
    elf[0x3c] = 4;
    elf
}

/// Returns a file with `b` at 0x200, `a` at 0x100 without a size, `c` at 0x300; an object, an undefined function, a
/// name outside the table.
fn sample() -> Vec<u8> {
    elf(
        &[
            (0, 0, 0, 0, 0),
            (3, 0x12, 1, 0x200, 0x10),
            (1, 0x02, 1, 0x100, 0),
            (5, 0x12, 1, 0x300, 0x80),
            (1, 0x11, 1, 0x210, 0x10),
            (1, 0x12, 0, 0x280, 0x10),
            (99, 0x12, 1, 0x290, 0x10),
        ],
        b"\0a\0b\0c\0",
    )
}

#[test]
fn finds_the_function_of_an_address() {
    let elf = sample();
    let symbols = Symbols::parse(&elf).unwrap();
    let name = |address| symbols.find(address).map(|index| symbols.functions()[index].name);
    for (address, expected) in [
        (0, None),
        (0xff, None),
        (0x100, Some("a")),
        (0x1ff, Some("a")),
        (0x200, Some("b")),
        (0x20f, Some("b")),
        (0x210, None),
        (0x280, None),
        (0x290, None),
        (0x300, Some("c")),
        (0x37f, Some("c")),
        (0x380, None),
        (u64::MAX, None),
    ] {
        assert_eq!(name(address), expected, "{address:#x}");
    }
}

#[test]
fn refuses_what_is_no_elf() {
    for bytes in [&b""[..], b"\x7fELF", b"\x7fELF\x01\x01", b"\x7fELF\x02\x02", b"MZ..........."] {
        assert_eq!(Symbols::parse(bytes).err(), Some(ElfError::NotElf64));
    }
    let mut without = sample();
    without[0x3c] = 3;
    assert_eq!(Symbols::parse(&without).err(), Some(ElfError::NoSymbolTable));
}

#[test]
fn refuses_every_cut_and_survives_every_byte() {
    let elf = sample();
    // The last fields of the last header (20 bytes) are not needed.
    for len in 0..elf.len() - 20 {
        assert!(Symbols::parse(&elf[..len]).is_err(), "{len}");
    }
    for index in 0..elf.len() {
        let mut changed = elf.clone();
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            changed[index] = byte;
            // Any result is allowed, but no panic.
            let _ = Symbols::parse(&changed).map(|symbols| symbols.find(0x200));
        }
    }
}

#[test]
fn says_where_it_is_cut() {
    let mut elf = sample();
    elf[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(Symbols::parse(&elf).err(), Some(ElfError::CutShort { offset: u64::MAX }));
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    for (error, text) in [
        (ElfError::NotElf64, "not an ELF file for 64 bits, little-endian"),
        (ElfError::CutShort { offset: 0x40 }, "ELF file cut short at 0x40"),
        (ElfError::NoSymbolTable, "ELF file without a symbol table"),
    ] {
        assert_eq!(alloc::format!("{error}"), text);
    }
}
