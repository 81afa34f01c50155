extern crate std;

use std::vec;
use std::vec::Vec;

use super::{Elf, ElfError, LoadSegment};

/// Difference between the linked (virtual) and the loaded (physical) address.
const LINKED: u64 = 0x1000_0000_0000;

/// Returns a 64-bit executable: a note segment with `notes` and one loaded part with `text` at `physical`, 16 bytes
/// longer in memory.
pub(crate) fn executable(notes: &[u8], physical: u64, text: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 64 + 2 * 56];
    let mut put = |at: usize, value: u64, size: usize| {
        file[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    put(0, u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0"), 8);
    put(16, 2, 2);
    put(18, 62, 2);
    put(24, LINKED.wrapping_add(physical), 8);
    put(32, 64, 8);
    put(54, 56, 2);
    put(56, 2, 2);
    let [notes_at, text_at] = [176, 176 + notes.len() as u64];
    for (at, value) in [(64, 4), (72, notes_at), (96, notes.len() as u64), (104, notes.len() as u64)] {
        put(at, value, 8);
    }
    let text_bytes = text.len() as u64;
    let part = [1, text_at, LINKED.wrapping_add(physical), physical, text_bytes, text_bytes + 16];
    for (at, value) in [120, 128, 136, 144, 152, 160].into_iter().zip(part) {
        put(at, value, 8);
    }
    file.extend_from_slice(notes);
    file.extend_from_slice(text);
    file
}

/// Returns a 32-bit executable with one loaded part.
fn executable32(physical: u32, text: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 52 + 32];
    let mut put = |at: usize, value: u32| file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(0, u32::from_le_bytes(*b"\x7fELF"));
    put(4, u32::from_le_bytes([1, 1, 1, 0]));
    put(16, 2 | 3 << 16);
    put(24, physical + 4);
    put(28, 52);
    put(40, 52 | 32 << 16);
    put(44, 1);
    let part = [1, 84, physical, physical, text.len() as u32, text.len() as u32];
    for (at, value) in [52, 56, 60, 64, 68, 72].into_iter().zip(part) {
        put(at, value);
    }
    file.extend_from_slice(text);
    file
}

pub(crate) fn note(name: &[u8], kind: u32, value: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for word in [name.len() as u32, value.len() as u32, kind] {
        note.extend_from_slice(&word.to_le_bytes());
    }
    for bytes in [name, value] {
        note.extend_from_slice(bytes);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    note
}

#[test]
fn reads_what_is_to_be_loaded() {
    let file = executable(&[], 0x10_0000, b"text");
    let elf = Elf::parse(&file).unwrap();
    let expected =
        LoadSegment { physical: 0x10_0000, linear: 0x1000_0010_0000, bytes: b"text", memory_bytes: 20 };
    assert_eq!(elf.load_segments().collect::<Vec<_>>(), [Ok(expected)]);
    assert_eq!(elf.entry(), 0x1000_0010_0000);
    assert_eq!(elf.physical(elf.entry() + 19), Ok(Some(0x10_0013)));
    assert_eq!(elf.physical(elf.entry() + 20), Ok(None));

    let file = executable32(0x20_0000, b"32 bits");
    let elf = Elf::parse(&file).unwrap();
    let expected = LoadSegment { physical: 0x20_0000, linear: 0x20_0000, bytes: b"32 bits", memory_bytes: 7 };
    assert_eq!(elf.load_segments().collect::<Vec<_>>(), [Ok(expected)]);
    assert_eq!(elf.entry(), 0x20_0004);
}

#[test]
fn loads_no_more_than_the_memory_of_a_part_has_room_for() {
    let mut file = executable(&[], 0x10_0000, b"text");
    // The size in memory is the second part's sixth field: now three bytes, but the file has four.
    file[160..168].copy_from_slice(&3_u64.to_le_bytes());
    let loads: Vec<_> = Elf::parse(&file).unwrap().load_segments().collect();
    let expected =
        LoadSegment { physical: 0x10_0000, linear: 0x1000_0010_0000, bytes: b"tex", memory_bytes: 3 };
    assert_eq!(loads, [Ok(expected)]);
}

#[test]
fn finds_the_pvh_note_among_others() {
    let pvh = note(b"Xen\0", 18, &0x0010_0020u64.to_le_bytes());
    let rows: [(Vec<u8>, Option<u32>); 8] = [
        // Lengths that are not multiples of four.
        ([note(b"Stone", 18, &[1; 6]), pvh.clone()].concat(), Some(0x10_0020)),
        (note(b"XEN\0", 18, &[1; 4]), None),
        (vec![], None),
        (pvh.clone(), Some(0x10_0020)),
        (note(b"Xen\0", 18, &0x0010_0020u32.to_le_bytes()), Some(0x10_0020)),
        ([note(b"GNU\0", 3, &[1; 19]), pvh.clone()].concat(), Some(0x10_0020)),
        (note(b"Xen\0", 17, &[0; 4]), None),
        (pvh[..pvh.len() - 1].to_vec(), None),
    ];
    for (notes, entry) in rows {
        assert_eq!(Elf::parse(&executable(&notes, 0, b"")).unwrap().pvh_entry(), Ok(entry), "{notes:x?}");
    }
}

#[test]
fn every_cut_is_an_error_and_no_panic() {
    let file = executable(&note(b"Xen\0", 18, &[0; 4]), 0x10_0000, b"text");
    for length in 0..file.len() {
        let cut = &file[..length];
        let whole = Elf::parse(cut)
            .and_then(|elf| elf.pvh_entry().and(elf.load_segments().try_for_each(|load| load.map(drop))));
        let missing = if length < 4 {
            matches!(whole, Err(ElfError::NotElf))
        } else {
            matches!(whole, Err(ElfError::Truncated { .. }))
        };
        assert!(missing, "{length} bytes: {whole:?}");
    }
}

#[test]
fn refuses_other_machines() {
    let mut file = executable(&[], 0, b"");
    file[18] = 183;
    assert_eq!(Elf::parse(&file).unwrap_err(), ElfError::Machine { class: 2, machine: 183 });
    assert_eq!(Elf::parse(b"#!/bin/sh").unwrap_err(), ElfError::NotElf);
}

#[test]
fn a_part_is_what_its_kind_says() {
    let mut file = executable(&note(b"Xen\0", 18, &[1; 4]), 0x10_0000, b"text");
    assert!(Elf::parse(&file).unwrap().pvh_entry().unwrap().is_some());
    // PT_DYNAMIC instead of PT_NOTE, in the first header.
    file[64] = 2;
    assert_eq!(Elf::parse(&file).unwrap().pvh_entry(), Ok(None));
    // A part without memory is not loaded. Neither is a part of another kind.
    for (at, value) in [(160, 0), (120, 2)] {
        let mut file = file.clone();
        file[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        assert_eq!(Elf::parse(&file).unwrap().load_segments().count(), 0, "{at}");
    }
}
