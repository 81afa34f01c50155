//! Records as bytes and as values.

use super::std::{format, string::String, string::ToString, vec, vec::Vec};

use super::{bytes_of, record};
use crate::bts::{BranchRecord, BranchRecords, Entry, Layout};
use crate::{Error, ErrorKind};

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
            assert_eq!(BranchRecord::parse(layout, &bytes[..len]), Err(truncated), "{layout:?} {len}");
            assert_eq!(record.emit(layout, &mut out[..len]), Err(truncated), "{layout:?} {len}");
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
            let found = entries(BranchRecords::new(&bytes_of(&[(from, to)], layout), layout));
            let expected = if is_empty {
                "0x0: empty branch records, 1 in a row".into()
            } else {
                format!("0: {from:x}")
            };
            assert_eq!(found, [expected], "{layout:?}");
        }
    }
}

#[test]
fn an_address_that_has_no_room_is_refused_and_nothing_is_written() {
    for (from, to) in [(1 << 32, 0), (0, u64::MAX)] {
        let mut out = [0xaa; 12];
        let kind = ErrorKind::TooWide { value: from.max(to) };
        assert_eq!(record(from, to).emit(Layout::Bits32, &mut out), Err(kind));
        assert_eq!(out, [0xaa; 12]);
    }
}

/// Returns entries as text.
fn entries(records: BranchRecords<'_>) -> Vec<String> {
    let text = |entry: Result<(u64, Entry), Error>| match entry {
        Ok((offset, Entry::Branch(BranchRecord { from, .. }))) => format!("{offset}: {from:x}"),
        Ok((offset, Entry::Lost { count })) => format!("{offset}: {count} lost"),
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
        (&full, 0, &["0: 10", "24: 20", "48: 30"]),
        (&full, size, &["0: 20", "24: 30", "48: 10"]),
        (&full, 2 * size, &["0: 30", "24: 10", "48: 20"]),
        (&full, 3 * size, &["0: 10", "24: 20", "48: 30"]),
        (&full, 4 * size, &["0: 10", "24: 20", "48: 30"]),
        // Memory that was never written is neither a record nor an error.
        (&fresh, size, &["0: 10"]),
        (&damaged, 0, &["0: 10", "0x18: empty branch records, 2 in a row", "72: 20"]),
        // The buffer's size need not be a multiple of the record's.
        (&odd, size, &["0: 20", "24: 30", "48: 10"]),
        (&[], 0, &[]),
    ];
    for (bytes, next, expected) in rows {
        assert_eq!(entries(BranchRecords::circular(bytes, next, Layout::Bits64)), expected, "{next}");
    }
}

#[test]
fn what_is_cut_short_is_said_once() {
    for layout in LAYOUTS {
        let whole = bytes_of(&[(0x10, 0x20), (0x30, 0x40)], layout);
        for len in 0..=whole.len() {
            let found = entries(BranchRecords::new(&whole[..len], layout));
            let (records, rest) = (len / layout.record_bytes(), len % layout.record_bytes());
            assert_eq!(found.len(), records + usize::from(rest > 0), "{layout:?} {len}: {found:?}");
            let cut = found
                .last()
                .is_some_and(|last| last.ends_with(&format!("where {} are needed", layout.record_bytes())));
            let header_cut = found.last().is_some_and(|last| last.ends_with("where 8 are needed"));
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
    // The size of this record is less than a header's.
    let damaged = [9u32.to_le_bytes(), [0; 4]].concat();
    // With PERF_SAMPLE_TID before the address, so the third word is not an address.
    let other =
        [&9u32.to_le_bytes()[..], &[0, 0, 32, 0], &[0x10, 0, 0, 0, 0, 0, 0, 0], &[3; 8], &[0x20; 8]].concat();
    let rows: [(&[&[u8]], &[&str]); 5] = [
        (&[&other, &sample], &["0x0: a sample of 32 bytes, one of nothing but IP and ADDR has 24", "32: 10"]),
        (&[&throttle, &sample, &throttle], &["16: 10"]),
        (&[&sample, &lost, &sample], &["0: 10", "24: 3 lost", "48: 10"]),
        (&[&short, &sample], &["0x0: 16 bytes where 24 are needed", "16: 10"]),
        (&[&damaged, &sample], &["0x0: 8 bytes where 24 are needed", "8: 10"]),
    ];
    for (parts, expected) in rows {
        assert_eq!(
            entries(BranchRecords::new(&parts.concat(), Layout::PerfSample)),
            expected,
            "{parts:02x?}"
        );
    }
}
