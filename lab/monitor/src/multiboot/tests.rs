extern crate std;

use std::vec;
use std::vec::Vec;

use super::{MultibootError, build, find};
use crate::boot_info::{BootInfo, BootModule, MemoryKind, MemoryRange, Module};
use crate::multiboot2::{AddressTag, Multiboot2Header};

/// Returns a header with these flags and fields, after `offset` other bytes.
fn file(offset: usize, flags: u32, fields: &[u32]) -> Vec<u8> {
    let mut file = vec![0; offset];
    let checksum = 0u32.wrapping_sub(0x1bad_b002).wrapping_sub(flags);
    let words = [0x1bad_b002, flags, checksum].into_iter().chain(fields.iter().copied());
    file.extend(words.flat_map(u32::to_le_bytes));
    file
}

#[test]
fn finds_the_header_and_what_it_asks_for() {
    let plain = |offset| Multiboot2Header { offset, ..Multiboot2Header::default() };
    let address = AddressTag { header: 0x10_0010, load: 0x10_0000, load_end: 0x10_1000, bss_end: 0x10_2000 };
    let fields = [0x10_0010, 0x10_0000, 0x10_1000, 0x10_2000, 0x10_0020];
    let addressed = Multiboot2Header { address: Some(address), entry: Some(0x10_0020), offset: 4 };
    for (file, expected) in [
        (file(0, 0, &[]), Ok(Some(plain(0)))),
        (file(0x1ff4, 3, &[]), Ok(Some(plain(0x1ff4)))),
        (file(4, 0x1_0003, &fields), Ok(Some(addressed))),
        // Flags that may be ignored.
        (file(8, 0xfffe_0000, &[]), Ok(Some(plain(8)))),
        // Too far, not at a multiple of 4, cut short, another sum.
        (file(0x1ff8, 0, &[]), Ok(None)),
        (file(2, 0, &[]), Ok(None)),
        (file(4, 0x1_0003, &fields[..4]), Ok(None)),
        (file(0, 0, &[])[..8].to_vec(), Ok(None)),
        ([file(0, 0, &[])[..8].to_vec(), vec![0; 4]].concat(), Ok(None)),
        (vec![], Ok(None)),
        // A video mode, and what no version defines.
        (file(0, 4, &[]), Err(MultibootError { flags: 4 })),
        (file(0, 0x800b, &[]), Err(MultibootError { flags: 0x8008 })),
    ] {
        assert_eq!(find(&file), expected, "{file:x?}");
    }
}

#[test]
fn information_has_its_data_behind_it() {
    let module = |start, bytes, words| BootModule { place: Module { start, bytes }, words };
    let info = BootInfo {
        command_line: "only=sort",
        modules: &[module(0xff0_0000, 0x1234, "dom0 a"), module(0xfe0_0000, 1, "")],
        memory: &[
            MemoryRange { start: 0, bytes: 0x9_fc00, kind: MemoryKind::Ram },
            MemoryRange { start: 0x10_0000, bytes: 0xff0_0000, kind: MemoryKind::Ram },
            MemoryRange { start: 0xfffc_0000, bytes: 0x4_0000, kind: MemoryKind::Reserved },
        ],
        rsdp: 0,
    };
    let bytes = build(0x8000, &info);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let at = |word: u32| word as usize - 0x8000;
    let text = |word: u32| bytes[at(word)..].split(|byte| *byte == 0).next().unwrap();
    assert_eq!((word(0), word(4), word(8)), (0b10_0100_1101, 639, 0xff0_0000 >> 10));
    assert_eq!((text(word(16)), text(word(64))), (&b"only=sort"[..], &b"pugmark-monitor"[..]));
    let modules = at(word(24));
    let module = |index: usize| [0, 4, 8, 12].map(|field| word(modules + 16 * index + field));
    let ([start, end, words, zero], [_, second_end, second_words, _]) = (module(0), module(1));
    assert_eq!((word(20), start, end, zero), (2, 0xff0_0000, 0xff0_1234, 0));
    assert_eq!((text(words), second_end, text(second_words)), (&b"dom0 a"[..], 0xfe0_0001, &b""[..]));
    let (map_bytes, map) = (word(44) as usize, at(word(48)));
    assert_eq!(map_bytes, 3 * 24);
    let last = &bytes[map + 2 * 24..][..24];
    assert_eq!(last, [20, 0, 0, 0, 0, 0, 0xfc, 0xff, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    assert!([12, 28, 52, 60, 68, 84].iter().all(|field| word(*field) == 0));
}
