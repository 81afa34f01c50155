//! Records as bytes and as values.

use super::std::{format, string::String, string::ToString, vec, vec::Vec};

use super::{bytes_of, record};
use crate::bts::{BranchRecord, Entry, Error, ErrorKind, Layout, Records};

const LAYOUTS: [Layout; 3] = [Layout::Bits32, Layout::Bits64, Layout::PerfSample];

#[test]
fn records_are_parsed_and_emitted_in_each_layout() {
    // The bytes are typed from the figures, and from perf_event.h.
    let rows: [(Layout, BranchRecord, &[u8]); 6] = [
        (
            Layout::Bits32,
            BranchRecord { from: 0x1122_3344, to: 0x5566_7788, predicted: true },
            &[0x44, 0x33, 0x22, 0x11, 0x88, 0x77, 0x66, 0x55, 0x10, 0, 0, 0],
        ),
        (Layout::Bits32, record(u32::MAX.into(), 1), &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0]),
        (
            Layout::Bits64,
            BranchRecord { from: 0x1122_3344_5566_7788, to: 0x10, predicted: true },
            &[
                0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0,
                0, 0, 0,
            ],
        ),
        (
            Layout::Bits64,
            record(1, u64::MAX),
            &[1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            Layout::PerfSample,
            record(0x20, 0x30),
            &[9, 0, 0, 0, 0, 0, 24, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0],
        ),
        (Layout::Bits64, record(0, 0), &[0; 24]),
    ];
    for (layout, record, bytes) in rows {
        assert_eq!(BranchRecord::parse(layout, bytes), Ok(record), "{layout:?} {bytes:02x?}");
        let mut out = vec![0xaa; bytes.len() + 1];
        assert_eq!(record.emit(layout, &mut out), Ok(bytes.len()), "{record:x?}");
        assert_eq!((&out[..bytes.len()], out[bytes.len()]), (bytes, 0xaa), "{record:x?}");
        for len in 0..bytes.len() {
            let truncated = ErrorKind::Truncated { bytes: len, needed: bytes.len() };
            let error = Error { index: 0, kind: truncated };
            assert_eq!(BranchRecord::parse(layout, &bytes[..len]), Err(error), "{layout:?} {len}");
            assert_eq!(record.emit(layout, &mut out[..len]), Err(error), "{layout:?} {len}");
        }
    }
}

#[test]
fn only_bit_4_of_the_third_field_counts() {
    for layout in [Layout::Bits32, Layout::Bits64] {
        let size = layout.record_bytes();
        let field = size / 3 * 2;
        for bit in 0..size / 3 * 8 {
            let mut bytes = vec![0; size];
            bytes[field + bit / 8] = 1 << (bit % 8);
            let parsed = BranchRecord::parse(layout, &bytes).expect("a whole record");
            assert_eq!(parsed, BranchRecord { predicted: bit == 4, ..record(0, 0) }, "{layout:?} bit {bit}");
        }
    }
}

#[test]
fn a_record_is_empty_without_either_address() {
    for (from, to, is_empty) in [(0, 0, true), (0, 1, false), (1, 0, false), (1, 1, false)] {
        for predicted in [false, true] {
            assert_eq!(BranchRecord { from, to, predicted }.is_empty(), is_empty, "{from} {to} {predicted}");
        }
        // Such a record is not skipped: a call through a null pointer has a source, and a fault there has a target.
        for layout in LAYOUTS {
            let found = entries(Records::new(&bytes_of(&[(from, to)], layout), layout));
            let expected =
                if is_empty { "branch record 0: empty, 1 in a row".into() } else { format!("0: {from:x}") };
            assert_eq!(found, [expected], "{layout:?}");
        }
    }
}

#[test]
fn an_address_that_has_no_room_is_refused_and_nothing_is_written() {
    for (from, to) in [(1 << 32, 0), (0, u64::MAX)] {
        let mut out = [0xaa; 12];
        let kind = ErrorKind::TooWide { address: from.max(to) };
        assert_eq!(record(from, to).emit(Layout::Bits32, &mut out), Err(Error { index: 0, kind }));
        assert_eq!(out, [0xaa; 12]);
    }
}

/// Entries as text.
fn entries(records: Records<'_>) -> Vec<String> {
    let text = |entry: Result<(u64, Entry), Error>| match entry {
        Ok((index, Entry::Branch(BranchRecord { from, .. }))) => format!("{index}: {from:x}"),
        Ok((index, Entry::Lost { count })) => format!("{index}: {count} lost"),
        Err(error) => error.to_string(),
    };
    records.map(text).collect()
}

#[test]
fn a_circular_buffer_begins_with_its_oldest_record() {
    let size = 24;
    let full = bytes_of(&[(0x10, 1), (0x20, 1), (0x30, 1)], Layout::Bits64);
    let fresh = bytes_of(&[(0x10, 1), (0, 0), (0, 0)], Layout::Bits64);
    let damaged = bytes_of(&[(0x10, 1), (0, 0), (0, 0), (0x20, 1)], Layout::Bits64);
    let odd = [&full[..], &[0x55; 7]].concat();
    let rows: [(&[u8], usize, &[&str]); 9] = [
        (&full, 0, &["0: 10", "1: 20", "2: 30"]),
        (&full, size, &["0: 20", "1: 30", "2: 10"]),
        (&full, 2 * size, &["0: 30", "1: 10", "2: 20"]),
        (&full, 3 * size, &["0: 10", "1: 20", "2: 30"]),
        (&full, 4 * size, &["0: 10", "1: 20", "2: 30"]),
        // Memory that was never written is neither a record nor an error.
        (&fresh, size, &["0: 10"]),
        (&damaged, 0, &["0: 10", "branch record 1: empty, 2 in a row", "3: 20"]),
        // The buffer's size need not be a multiple of the record's.
        (&odd, size, &["0: 20", "1: 30", "2: 10"]),
        (&[], 0, &[]),
    ];
    for (bytes, next, expected) in rows {
        assert_eq!(entries(Records::circular(bytes, next, Layout::Bits64)), expected, "{next}");
    }
}

#[test]
fn what_is_cut_short_is_said_once() {
    for layout in LAYOUTS {
        let whole = bytes_of(&[(0x10, 0x20), (0x30, 0x40)], layout);
        for len in 0..=whole.len() {
            let found = entries(Records::new(&whole[..len], layout));
            let (records, rest) = (len / layout.record_bytes(), len % layout.record_bytes());
            assert_eq!(found.len(), records + usize::from(rest > 0), "{layout:?} {len}: {found:?}");
            let cut =
                found.last().is_some_and(|last| last.ends_with(&format!("has {}", layout.record_bytes())));
            let header_cut = found.last().is_some_and(|last| last.ends_with("has 8"));
            assert_eq!(cut || header_cut, rest > 0, "{layout:?} {len}: {found:?}");
        }
    }
}

#[test]
fn perf_records_of_other_kinds_lie_between_samples() {
    let sample = bytes_of(&[(0x10, 0x20)], Layout::PerfSample);
    let throttle = [5u32.to_le_bytes(), [0, 0, 16, 0], [1; 4], [2; 4]].concat();
    let lost = [2u32.to_le_bytes(), [0, 0, 24, 0], [7; 4], [7; 4], [3, 0, 0, 0], [0; 4]].concat();
    let short = [9u32.to_le_bytes(), [0, 0, 16, 0], [1; 4], [2; 4]].concat();
    // Its size is less than a header's.
    let damaged = [9u32.to_le_bytes(), [0; 4]].concat();
    // With PERF_SAMPLE_TID before the address, so the third word is not an address.
    let other =
        [&9u32.to_le_bytes()[..], &[0, 0, 32, 0], &[0x10, 0, 0, 0, 0, 0, 0, 0], &[3; 8], &[0x20; 8]].concat();
    let rows: [(&[&[u8]], &[&str]); 5] = [
        (
            &[&other, &sample],
            &["branch record 0: a sample of 32 bytes, one of nothing but IP and ADDR has 24", "0: 10"],
        ),
        (&[&throttle, &sample, &throttle], &["0: 10"]),
        (&[&sample, &lost, &sample], &["0: 10", "1: 3 lost", "1: 10"]),
        (&[&short, &sample], &["branch record 0: 16 bytes, a record has 24", "0: 10"]),
        (&[&damaged, &sample], &["branch record 0: 8 bytes, a record has 24", "0: 10"]),
    ];
    for (parts, expected) in rows {
        assert_eq!(entries(Records::new(&parts.concat(), Layout::PerfSample)), expected, "{parts:02x?}");
    }
}
