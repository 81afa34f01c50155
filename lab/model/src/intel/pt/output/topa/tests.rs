use std::collections::BTreeMap;
use std::vec::Vec;

use super::*;

/// Memory with tables, which records every write.
#[derive(Default)]
struct TableMemory {
    words: BTreeMap<u64, u64>,
    writes: Vec<(u64, usize)>,
}

impl TableMemory {
    fn with(entries: &[(u64, u64)]) -> Self {
        Self { words: entries.iter().copied().collect(), writes: Vec::new() }
    }
}

impl PhysMemory for TableMemory {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        for (index, chunk) in out.chunks_mut(8).enumerate() {
            let word = self.words.get(&(addr + index as u64 * 8)).copied().unwrap_or(0);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
        addr < 1 << 36
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool {
        self.writes.push((addr, bytes.len()));
        addr < 1 << 36
    }
}

fn topa(name: &str) -> Topa {
    Topa::new(IntelProfile::by_name(name).expect(name))
}

/// Returns OUTPUT_MASK_PTRS for an entry and an offset.
fn at(index: u64, offset: u64) -> u64 {
    offset << 32 | index << 7 | 0x7f
}

const T: u64 = 0x1_0000;

#[test]
fn refuses_each_malformed_table() {
    use OperationalError::*;
    let first = T;
    let second = T + 8;
    let end = T | 1;
    // Profile, entry 0, entry 1, MASK_PTRS, error at the start.
    let rows: [(&str, u64, u64, u64, Option<OperationalError>); 32] = [
        ("skylake", 0x20_0000, end, at(0, 0), None),
        ("skylake", 0x20_0000, end, at(0, 0xfff), None),
        ("skylake", 0x20_0000, end, at(0, 0x1000), Some(OffsetBeyondRange { offset: 0x1000 })),
        ("skylake", 0x20_0040, end, at(0, 0x1000), None),
        ("skylake", 0x20_0002, end, at(0, 0), Some(ReservedBits { address: first, entry: 0x20_0002 })),
        ("skylake", 0x20_0008, end, at(0, 0), Some(ReservedBits { address: first, entry: 0x20_0008 })),
        ("skylake", 0x20_0020, end, at(0, 0), Some(ReservedBits { address: first, entry: 0x20_0020 })),
        ("skylake", 0x20_0400, end, at(0, 0), Some(ReservedBits { address: first, entry: 0x20_0400 })),
        ("skylake", 0x20_0800, end, at(0, 0), Some(ReservedBits { address: first, entry: 0x20_0800 })),
        ("skylake", 1 << 39, end, at(0, 0), Some(ReservedBits { address: first, entry: 1 << 39 })),
        ("skylake", 1 << 63, end, at(0, 0), Some(ReservedBits { address: first, entry: 1 << 63 })),
        ("icelake", 1 << 39, end, at(0, 0), None),
        ("skylake", 0x20_1040, end, at(0, 0), Some(RegionMisaligned { address: first, entry: 0x20_1040 })),
        ("skylake", 0x20_2040, end, at(0, 0), None),
        ("skylake", 0x400_03c0, end, at(0, 0), Some(RegionMisaligned { address: first, entry: 0x400_03c0 })),
        ("skylake", 0x800_03c0, end, at(0, 0x7ff_ffff), None),
        ("skylake", 0x20_0014, end, at(0, 0), None),
        ("skylake", T | 1, end, at(0, 0), Some(EndInFirstEntry { address: first })),
        ("skylake", 0x5_0001, end, at(0, 0), Some(EndInFirstEntry { address: first })),
        ("skylake", T | 1, end, at(1, 0), Some(EndInFirstEntry { address: first })),
        (
            "skylake",
            0x20_0000,
            1 << 39 | 1,
            at(1, 0),
            Some(ReservedBits { address: second, entry: 1 << 39 | 1 }),
        ),
        ("broadwell", 0x20_0000, end, at(2, 0), Some(NoEndInSecondEntry { address: T + 16 })),
        ("skylake", 0x20_0000, T | 1 | 4, at(1, 0), Some(ReservedBits { address: second, entry: T | 5 })),
        (
            "skylake",
            0x20_0000,
            T | 1 | 0x10,
            at(1, 0),
            Some(ReservedBits { address: second, entry: T | 0x11 }),
        ),
        ("skylake", 0x20_0000, T | 1 | 2, at(1, 0), Some(ReservedBits { address: second, entry: T | 3 })),
        ("skylake", 0x20_0000, T | 1 | 0x3c0, at(1, 0), None),
        ("skylake", 0x20_0000, end, at(1, 0), None),
        ("broadwell", 0x20_0000, end, at(0, 0), None),
        ("broadwell", 0x20_0000, 0x30_0000, at(0, 0), Some(NoEndInSecondEntry { address: second })),
        (
            "broadwell",
            0x20_0000,
            0x30_0001,
            at(0, 0),
            Some(EndElsewhere { address: second, entry: 0x30_0001 }),
        ),
        ("broadwell", 0x20_0000, 0x30_0000, at(1, 0), Some(NoEndInSecondEntry { address: second })),
        ("broadwell", 0x20_0000, T | 5, at(0, 0), Some(ReservedBits { address: second, entry: T | 5 })),
    ];
    for (name, entry0, entry1, mask_ptrs, error) in rows {
        let memory = TableMemory::with(&[(first, entry0), (second, entry1)]);
        let started = topa(name).start(T, mask_ptrs, &memory);
        assert_eq!(started.err(), error, "{name} {entry0:#x} {entry1:#x} {mask_ptrs:#x}");
    }
}

#[test]
fn refuses_a_table_that_is_not_page_aligned_or_not_there() {
    let memory = TableMemory::with(&[(T, 0x20_0000)]);
    let misaligned = topa("skylake").start(T + 0x80, at(0, 0), &memory);
    assert_eq!(misaligned, Err(OperationalError::TableMisaligned { table: T + 0x80 }));
    let absent = topa("skylake").start(1 << 37, at(0, 0), &memory);
    assert_eq!(absent, Err(OperationalError::TableUnreadable { address: 1 << 37 }));
}

#[test]
fn regions_have_4_kib_to_128_mib() {
    for n in 0..16u64 {
        let size = 0x1000u64 << n;
        let mut memory = TableMemory::with(&[(T, 0x800_0000 | n << 6 | 4), (T + 8, T | 1)]);
        let mut topa = topa("skylake");
        topa.start(T, at(0, size - 3), &memory).expect("a table");
        let mut violations = IntelViolations::default();
        let full = topa.write(&[0; 8], &mut memory, &mut violations);
        assert_eq!(full, Ok((3, FilledRegion { int: true, stop: false })), "{size:#x}");
        assert_eq!(memory.writes, [(0x800_0000 + size - 3, 3)]);
        assert_eq!(topa.pointers(), (T, at(0, 0)));
    }
}

#[test]
fn walks_regions_and_tables() {
    const U: u64 = 0x2_0000;
    let mut memory = TableMemory::with(&[
        (T, 0x20_0000),
        (T + 8, 0x21_0000 | 4),
        (T + 16, U | 1),
        (U, 0x30_0000 | 0x14),
        (U + 8, T | 1),
    ]);
    let mut topa = topa("skylake");
    let mut violations = IntelViolations::default();
    topa.start(T, at(0, 0xff0), &memory).expect("a table");
    let none = FilledRegion::default();
    assert_eq!(topa.write(&[0; 20], &mut memory, &mut violations), Ok((16, none)));
    assert_eq!(topa.pointers(), (T, at(1, 0)));
    assert_eq!(topa.write(&[0; 4], &mut memory, &mut violations), Ok((4, none)));
    assert_eq!(topa.pointers(), (T, at(1, 4)));
    assert_eq!(
        topa.write(&[0; 0x1000], &mut memory, &mut violations),
        Ok((0xffc, FilledRegion { int: true, stop: false }))
    );
    assert_eq!(topa.pointers(), (U, at(0, 0)));
    // At a STOP the pointers stay at the entry, and the offset becomes the region's size.
    assert_eq!(
        topa.write(&[0; 0x1000], &mut memory, &mut violations),
        Ok((0x1000, FilledRegion { int: true, stop: true }))
    );
    assert_eq!(topa.pointers(), (U, at(0, 0x1000)));
    let addresses: Vec<u64> = memory.writes.iter().map(|write| write.0).collect();
    assert_eq!(addresses, [0x20_0ff0, 0x21_0000, 0x21_0004, 0x30_0000]);
    assert_eq!(violations, IntelViolations::default());
}

#[test]
fn a_start_at_an_end_entry_goes_on_at_the_begin_of_the_next_tables_first_region() {
    // "Table of Physical Addresses (ToPA)": an entry with END=1 has the address of a table, not of an output region.
    // "ToPA Errors" compares the offset with the size of a region.
    const U: u64 = 0x2_0000;
    for offset in [0, 0x10, 0xfff, 0x7fff_ffff] {
        let mut memory = TableMemory::with(&[(T, 0x20_0000), (T + 8, U | 1), (U, 0x30_0000), (U + 8, T | 1)]);
        let mut topa = topa("skylake");
        topa.start(T, at(1, offset), &memory).expect("a table");
        assert_eq!(topa.pointers(), (U, at(0, 0)), "{offset:#x}");
        let mut violations = IntelViolations::default();
        assert_eq!(topa.write(&[0; 8], &mut memory, &mut violations), Ok((8, FilledRegion::default())));
        assert_eq!(memory.writes, [(0x30_0000, 8)]);
    }
}

#[test]
fn an_error_in_an_entry_shows_when_it_is_reached() {
    let mut memory = TableMemory::with(&[(T, 0x20_0000), (T + 8, 0x21_0002)]);
    let mut topa = topa("skylake");
    topa.start(T, at(0, 0xff8), &memory).expect("a table");
    let error = OperationalError::ReservedBits { address: T + 8, entry: 0x21_0002 };
    assert_eq!(topa.write(&[0; 8], &mut memory, &mut IntelViolations::default()), Err((8, error)));
    assert_eq!(topa.pointers(), (T, at(1, 0)), "the pointer shows the entry");
}

#[test]
fn the_last_entry_of_the_largest_table_is_followed_by_the_first() {
    let last = T + u64::from(LAST_INDEX) * 8;
    let mut memory = TableMemory::with(&[(T, 0x20_0000), (last, 0x21_0000)]);
    let mut topa = topa("skylake");
    topa.start(T, at(u64::from(LAST_INDEX), 0xfff), &memory).expect("a table");
    topa.write(&[0], &mut memory, &mut IntelViolations::default()).expect("room");
    assert_eq!(topa.pointers(), (T, at(0, 0)));
}

#[test]
fn a_single_entry_raises_its_pmi_early_and_wraps() {
    // INT, STOP of the entry; the consequences at size - 512, and at the end.
    let none = FilledRegion::default();
    let int = FilledRegion { int: true, stop: false };
    let stop = FilledRegion { int: false, stop: true };
    for (bits, early, full) in [(0, none, none), (4, int, none), (0x10, none, stop), (0x14, int, stop)] {
        let mut memory = TableMemory::with(&[(T, 0x20_0000 | bits), (T + 8, T | 1)]);
        let mut violations = IntelViolations::default();
        let mut topa = topa("broadwell");
        topa.start(T, at(0, 0xdf0), &memory).expect("a table");
        assert_eq!(topa.write(&[0; 16], &mut memory, &mut violations), Ok((16, early)), "{bits:x} early");
        assert_eq!(topa.write(&[0; 512], &mut memory, &mut violations), Ok((512, full)), "{bits:x} full");
        let offset = if full.stop { 0x1000 } else { 0 };
        assert_eq!(topa.pointers(), (T, at(0, offset)));
    }
}

#[test]
fn a_live_edit_is_not_seen_but_counted() {
    let mut memory = TableMemory::with(&[(T, 0x20_0000), (T + 8, 0x21_0000), (T + 16, T | 1), (T + 24, 7)]);
    let mut violations = IntelViolations::default();
    let mut topa = topa("skylake");
    topa.start(T, at(0, 0xff0), &memory).expect("a table");
    memory.words.insert(T + 8, 0x50_0000);
    // Entries after the END entry are not cached.
    memory.words.insert(T + 24, 8);
    topa.write(&[0; 16], &mut memory, &mut violations).expect("room");
    topa.write(&[0; 16], &mut memory, &mut violations).expect("room");
    assert_eq!(memory.writes[1], (0x21_0000, 16), "the cached entry");
    topa.finish(&memory, &mut violations);
    assert_eq!((violations.live_table_edits, violations.first_live_edit), (1, Some(T + 8)));
    // With tracing off the change is allowed, and takes effect.
    memory.words.insert(T, 0x60_0000);
    topa.start(T, at(1, 0), &memory).expect("a table");
    topa.write(&[0; 1], &mut memory, &mut violations).expect("room");
    topa.finish(&memory, &mut violations);
    assert_eq!(memory.writes[2], (0x50_0000, 1));
    assert_eq!(violations.live_table_edits, 1);
}

#[test]
fn a_live_edit_is_counted_when_the_table_goes_round() {
    let mut memory = TableMemory::with(&[(T, 0x20_0000), (T + 8, T | 1)]);
    let mut violations = IntelViolations::default();
    let mut topa = topa("skylake");
    topa.start(T, at(0, 0xff0), &memory).expect("a table");
    memory.words.insert(T, 0x50_0000);
    topa.write(&[0; 16], &mut memory, &mut violations).expect("room");
    assert_eq!((violations.live_table_edits, violations.first_live_edit), (1, Some(T)));
    topa.write(&[0; 16], &mut memory, &mut violations).expect("room");
    assert_eq!(memory.writes[1], (0x50_0000, 16), "a new lap reads the table anew");
}

#[test]
fn output_where_no_memory_is_gets_lost_and_counted() {
    let mut memory = TableMemory::with(&[(T, 1 << 37), (T + 8, T | 1)]);
    let mut violations = IntelViolations::default();
    let mut topa = topa("skylake");
    topa.start(T, at(0, 0), &memory).expect("a table");
    topa.write(&[0; 16], &mut memory, &mut violations).expect("no error");
    assert_eq!(violations.writes_outside_memory, 1);
}
