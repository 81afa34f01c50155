use super::*;
use crate::scratch::Scratch;
use std::fs;

const START: u64 = 0x1000_0000;

fn dword_at(bytes: &[u8], at: usize) -> u32 {
    dword(bytes, at).unwrap()
}

/// Returns an ELF file with these program headers: type, address, content.
fn elf(parts: &[(u32, u64, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; 64 + 56 * parts.len()];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[0x20] = 64;
    (file[0x36], file[0x38]) = (56, parts.len() as u8);
    for (index, (kind, address, content)) in parts.iter().enumerate() {
        let offset = file.len() as u64;
        let header = &mut file[64 + 56 * index..][..56];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        for (at, value) in [(0x08, offset), (0x18, *address), (0x20, content.len() as u64)] {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        file.extend_from_slice(content);
    }
    file
}

/// Returns two notes, the second of which has these two values.
fn notes(entry: u64, page: u64) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    [
        &words(&[4, 4, 18]),
        &b"Xen\0"[..],
        &words(&[START as u32]),
        &words(&[8, 8, 1]),
        b"Pugmark\0",
        &words(&[entry as u32, page as u32]),
    ]
    .concat()
}

/// Returns the file of a monitor whose code is at its start, and whose page is at 2000H from there.
fn monitor() -> Vec<u8> {
    let note = notes(START + 0x10, START + 0x2000);
    elf(&[(NOTE, START, &note), (LOAD, START, &[0x90; 0x123]), (LOAD, START + 0x2000, &[0xcc; 0x1800])])
}

#[test]
fn the_rom_has_a_driver_that_firmware_loads_anywhere() {
    let rom = option_rom(&monitor(), 65 << 20, 577 << 20, "ram=577 -- ").unwrap();
    assert_eq!((rom.len() % 512, usize::from(word(&rom, 2).unwrap()) * 512), (0, rom.len()));
    assert_eq!((word(&rom, 0), dword_at(&rom, 4)), (Some(0xaa55), 0xef1));
    // A driver of boot services for x64, not compressed.
    assert_eq!([8, 10, 12].map(|at| word(&rom, at).unwrap()), [11, 0x8664, 0]);
    let structure = usize::from(word(&rom, 0x18).unwrap());
    assert_eq!(&rom[structure..structure + 4], b"PCIR");
    assert_eq!(word(&rom, structure + 0x10), word(&rom, 2));
    assert_eq!(rom[structure + 0x14..][..2], [3, 0x80]);

    let file = &rom[usize::from(word(&rom, 0x16).unwrap())..];
    assert_eq!((&file[..2], dword_at(file, 0x3c)), (&b"MZ"[..], 64));
    assert_eq!((&file[64..68], word(file, 68)), (&b"PE\0\0"[..], Some(0x8664)));
    const RELOCATIONS_STRIPPED: u16 = 1;
    assert_eq!(word(file, 64 + 22).unwrap() & RELOCATIONS_STRIPPED, 0);
    let optional = &file[64 + 24..];
    assert_eq!((word(optional, 0), dword_at(optional, 0x10)), (Some(0x20b), 0x1010));
    assert_eq!((dword_at(optional, 0x38), dword_at(optional, 0x3c)), (0x5000, 0x1000));
    assert_eq!(word(optional, 0x44), Some(11));
    let section = &optional[112..];
    let [bytes, address, raw, offset] = [8, 12, 16, 20].map(|at| dword_at(section, at) as usize);
    assert_eq!((bytes, address, raw, offset), (0x4000, 0x1000, 0x4000, 0x1000));
    let image = &file[offset..offset + raw];
    assert!(
        image[..0x123].iter().all(|byte| *byte == 0x90) && image[0x123..0x2000].iter().all(|byte| *byte == 0)
    );
    assert!(image[0x3000..0x3800].iter().all(|byte| *byte == 0xcc));

    let page = &image[0x2000..0x3000];
    let long_at = |at: usize| long(page, at).unwrap();
    let at = |address: u64| (address - START - 0x2000) as usize;
    assert_eq!((long_at(0), dword_at(page, 16), dword_at(page, 20)), (65 << 8, 0x336e_c578, 1));
    // No modules, the command line, no root pointer, and the map.
    assert_eq!((dword_at(page, 28), long_at(48), dword_at(page, 64)), (0, 0, 2));
    assert!(page[at(long_at(40))..].starts_with(b"ram=577 -- \0"));
    let map = at(long_at(56));
    let range = |index: usize| [0, 8, 16].map(|field| long_at(map + 24 * index + field));
    assert_eq!((range(0), range(1)), ([0, 577 << 20, 1], [577 << 20, 2495 << 20, 2]));
}

#[test]
fn a_command_line_has_its_place_or_is_refused() {
    let long_line = option_rom(&monitor(), 1, 1, &"x".repeat(4000)).unwrap_err().to_string();
    assert_eq!(long_line, "the monitor's options have 4000 bytes, which are too many");
}

#[test]
fn a_file_without_the_note_or_cut_short_is_refused() {
    let code = (LOAD, START, &[0; 0x3000][..]);
    for (file, what) in [
        (vec![], "nothing"),
        (b"\x7fELF\x01\x01".to_vec(), "32 bits"),
        (elf(&[code]), "no note"),
        (elf(&[(NOTE, START, b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0\0\0\0\0"), code]), "another note"),
        (elf(&[(NOTE, START, &notes(START, START + 0x2001)), code]), "a page beyond the end"),
        (elf(&[(NOTE, START, &notes(START + 0x3000, START)), code]), "an entry beyond the end"),
        (elf(&[(NOTE, START, &notes(START - 1, START)), code]), "an entry before the start"),
        (elf(&[(NOTE, START, &notes(START, START)), code, (LOAD, 0, &[0])]), "too far apart"),
    ] {
        let error = option_rom(&file, 1, 1, "").unwrap_err().to_string();
        assert_eq!(error, "the monitor's file cannot be started by UEFI firmware", "{what}");
    }
    let whole = monitor();
    for end in (0..whole.len()).step_by(7) {
        assert!(option_rom(&whole[..end], 1, 1, "").is_err(), "{end}");
    }
}

#[test]
fn the_firmware_is_where_distributions_have_it_or_named_with_its_package() {
    let scratch = Scratch::new().unwrap();
    let error = Firmware::find_in(scratch.folder()).unwrap_err().to_string();
    assert!(error.contains("usr/share/OVMF/OVMF_CODE_4M.fd`") && error.contains("package ovmf"), "{error}");
    for folder in ["usr/share/edk2/ovmf", "usr/share/OVMF"] {
        let folder = scratch.folder().join(folder);
        fs::create_dir_all(&folder).unwrap();
        let [code, variables] = ["OVMF_CODE.fd", "OVMF_VARS.fd"].map(|name| folder.join(name));
        fs::write(&code, "").unwrap();
        assert_ne!(
            Firmware::find_in(scratch.folder()).ok().map(|firmware| firmware.code).as_ref(),
            Some(&code)
        );
        fs::write(&variables, "").unwrap();
        assert_eq!(Firmware::find_in(scratch.folder()).unwrap(), Firmware { code, variables });
    }
}
