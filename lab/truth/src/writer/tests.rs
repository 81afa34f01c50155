extern crate std;

use core::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

use crate::{Branch, BranchKind, Log, LogMode, LogWriter, Record, RecordFlags, Sum, TruthError};

fn region(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0xdead_beef_dead_beef)).collect()
}

fn bytes(region: &[AtomicU64]) -> Vec<u8> {
    region.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
}

const ROWS: [Record; 3] = [
    Record { rip: 0x1000, cr3: 0x2000, session: 1, flags: RecordFlags::new(0), cpu: 0 },
    Record {
        rip: 0xffff_8000_0000_1234,
        cr3: u64::MAX,
        session: 0xffff,
        flags: RecordFlags::new(3).software_interrupt(),
        cpu: 3,
    },
    Record { rip: u64::MAX, cr3: 0, session: 0x0102, flags: RecordFlags::new(2).emulated(), cpu: 0xffff },
];

#[test]
fn what_was_appended_is_read_in_order() {
    let region = region(8 + 3 * 5 + 2);
    let writer = LogWriter::new(&region).unwrap();
    assert_eq!(writer.capacity(), 5);
    for row in ROWS {
        writer.append(row);
    }
    let bytes = bytes(&region);
    let log = Log::new(&bytes).unwrap();
    assert_eq!(log.records().collect::<Vec<_>>(), ROWS);
    assert_eq!((log.header().len(), log.header().lost(), log.header().exit()), (3, 0, None));
    writer.close(0x10);
    assert_eq!(Log::new(&self::bytes(&region)).unwrap().header().exit(), Some(0x10));
}

#[test]
fn a_time_is_no_instruction_and_no_branch() {
    let time = Record::of_time(u64::MAX - 5, 7, 3);
    let same = Record::from_words(time.to_words());
    assert_eq!((same, same.time(), same.branch()), (time, Some(u64::MAX - 5), None));
    assert_eq!((same.session, same.cpu, same.flags.bits()), (7, 3, 1 << 10));
    assert_eq!(time.to_words(), [u64::MAX - 5, 0, 0x0003_0400_0007]);
    assert!(ROWS.iter().all(|row| row.time().is_none()));
}

#[test]
fn bytes_lie_where_the_layout_says() {
    let region = region(8 + 3);
    let writer = LogWriter::new(&region).unwrap();
    writer.append(Record {
        rip: 0x0807_0605_0403_0201,
        cr3: 0x1817_1615_1413_1211,
        session: 0x2221,
        flags: RecordFlags::new(3).software_interrupt(),
        cpu: 0x2625,
    });
    let bytes = bytes(&region);
    assert_eq!(&bytes[..8], b"PUGTRUTH");
    assert_eq!(bytes[8..16], [5, 0, 0, 0, 24, 0, 0, 0]);
    assert_eq!(bytes[16..24], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[24..32], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[32..40], [0; 8], "not closed");
    assert_eq!(bytes[40..48], [1, 0, 0, 0, 0, 0, 0, 0]);
    // The garbage that was there counts as the number of an earlier log.
    assert_eq!(bytes[48..56], [0xf0, 0xbe, 0, 0, 0, 0, 0, 0]);
    let record = [
        1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 7, 0, 0x25, 0x26,
        0xf0, 0xbe,
    ];
    assert_eq!(bytes[64..], record);
}

#[test]
fn counts_what_finds_no_room() {
    let region = region(8 + 3 * 2);
    let writer = LogWriter::new(&region).unwrap();
    for row in ROWS {
        writer.append(row);
    }
    let bytes = bytes(&region);
    let log = Log::new(&bytes).unwrap();
    assert_eq!((log.header().len(), log.header().lost()), (2, 1));
    assert_eq!(log.records().collect::<Vec<_>>(), ROWS[..2]);
}

#[test]
fn a_log_is_empty_where_no_record_can_be_read() {
    for (rooms, records, empty) in [(1, 0, true), (1, 1, false), (1, 2, false), (0, 0, true), (0, 1, true)] {
        let region = region(8 + 3 * rooms);
        let writer = LogWriter::new(&region).unwrap();
        ROWS[..records].iter().for_each(|row| writer.append(*row));
        let bytes = bytes(&region);
        let log = Log::new(&bytes).unwrap();
        assert_eq!(log.header().is_empty(), empty, "{records} in {rooms}");
        // A damaged header.
        region[3].store(9, Ordering::Relaxed);
        let bytes = self::bytes(&region);
        assert_eq!(Log::new(&bytes).unwrap().header().is_empty(), rooms == 0, "{records} in {rooms}");
        assert_eq!(log.records().len(), rooms.min(records));
    }
}

#[test]
fn flags_say_the_level_and_the_kind() {
    for cpl in 0..4 {
        let plain = RecordFlags::new(cpl);
        for (flags, bits, software_interrupt, emulated) in [
            (plain, 0, false, false),
            (plain.software_interrupt(), 4, true, false),
            (plain.emulated(), 8, false, true),
            (plain.emulated().software_interrupt(), 12, true, true),
            (plain.traced(), 1 << 11, false, false),
        ] {
            assert_eq!((flags.cpl(), flags.bits()), (cpl, bits | u16::from(cpl)));
            assert_eq!((flags.is_software_interrupt(), flags.is_emulated()), (software_interrupt, emulated));
            assert_eq!(flags.is_traced(), bits == 1 << 11);
        }
    }
    assert_eq!(RecordFlags::new(7), RecordFlags::new(3), "a level has two bits");
}

#[test]
fn refuses_what_is_no_log() {
    assert_eq!(LogWriter::new(&region(7)).unwrap_err(), TruthError::Short { bytes: 56 });
    let region = region(8 + 3);
    LogWriter::new(&region).unwrap();
    let good = bytes(&region);
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Log::new(&bytes).unwrap_err()
    };
    assert_eq!(change(0, b'p'), TruthError::Magic(u64::from_le_bytes(*b"pUGTRUTH")));
    assert_eq!(change(8, 1), TruthError::Version(1));
    assert_eq!(change(12, 32), TruthError::RecordBytes(32));
    assert_eq!(change(56, 3), TruthError::Mode(3));
    assert_eq!(change(16, 2), TruthError::Capacity { claimed: 2, fits: 1 });
    assert_eq!(Log::new(&good[..63]).unwrap_err(), TruthError::Short { bytes: 63 });
}

#[test]
fn processors_share_one_log() {
    let region = region(8 + 3 * 4000);
    let writer = LogWriter::new(&region).unwrap();
    std::thread::scope(|scope| {
        for cpu in 0..4 {
            scope.spawn(move || {
                for rip in 0..1000 {
                    writer.append(Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(0), cpu });
                }
            });
        }
    });
    let bytes = bytes(&region);
    let log = Log::new(&bytes).unwrap();
    for cpu in 0..4 {
        let rips: Vec<u64> = log.records().filter(|r| r.cpu == cpu).map(|r| r.rip).collect();
        assert_eq!(rips, (0..1000).collect::<Vec<_>>());
    }
}

/// Checks that every counted record is whole, because the harness reads while the machine runs.
#[test]
fn a_record_is_counted_only_when_it_is_written() {
    const EACH: u64 = 20_000;
    let region = region(8 + 3 * 2 * EACH as usize);
    let writer = LogWriter::new(&region).unwrap();
    let torn = std::thread::scope(|scope| {
        for cpu in 1..=2 {
            scope.spawn(move || {
                for rip in 0..EACH {
                    writer.append(Record { rip, cr3: !rip, session: 7, flags: RecordFlags::new(0), cpu });
                }
            });
        }
        let (mut seen, mut torn) = (0, 0);
        while seen < 2 * EACH {
            let count = writer.count();
            for index in seen..count {
                let at = 8 + 3 * index as usize;
                let words = [0, 1, 2].map(|word| region[at + word].load(Ordering::Relaxed));
                let record = Record::from_words(words);
                torn += u64::from(record.cr3 != !record.rip || record.session != 7);
            }
            seen = count;
        }
        torn
    });
    assert_eq!(torn, 0);
}

/// Simulates another processor that has begun a record and is slow to write it.
#[test]
fn a_record_is_not_counted_before_one_that_was_begun_earlier_and_nobody_waits() {
    const BEGUN: usize = 5;
    let region = region(8 + 3 * 4);
    let writer = LogWriter::new(&region).unwrap();
    region[BEGUN].store(1, Ordering::Relaxed);
    writer.append(ROWS[0]);
    writer.append(ROWS[1]);
    assert_eq!(writer.count(), 0);
    // The slow processor writes its record at last, and counts all.
    region[BEGUN].store(0, Ordering::Relaxed);
    writer.append(ROWS[2]);
    assert_eq!(writer.count(), 3);
    region[BEGUN].store(3, Ordering::Relaxed);
    let bytes = bytes(&region);
    let log = Log::new(&bytes).unwrap();
    assert_eq!(log.records().collect::<Vec<_>>(), [ROWS[2], ROWS[0], ROWS[1]]);
}

#[test]
fn what_an_earlier_log_left_is_not_counted() {
    let region: Vec<AtomicU64> = (0..8 + 3 * 4).map(|_| AtomicU64::new(0)).collect();
    for _ in 0..3 {
        let writer = LogWriter::new(&region).unwrap();
        assert_eq!(writer.count(), 0);
        for (row, count) in ROWS.into_iter().zip(1..) {
            writer.append(row);
            assert_eq!(writer.count(), count);
        }
    }
    // The number after the largest one is 1: no log has 0, the value of untouched memory.
    const EPOCH: usize = 6;
    region[EPOCH].store(0xffff, Ordering::Relaxed);
    LogWriter::new(&region).unwrap();
    assert_eq!(region[EPOCH].load(Ordering::Relaxed), 1);
}

#[test]
fn a_branch_has_both_ends_its_kind_and_both_levels() {
    let table = [
        (BranchKind::Conditional, 0, 0, 0x10),
        (BranchKind::Event, 3, 0, 0x293),
        (BranchKind::Far, 0, 3, 0x270),
        (BranchKind::Jump, 1, 2, 0xd1),
        (BranchKind::Call, 3, 3, 0x173),
        (BranchKind::Return, 0, 0, 0x190),
    ];
    for (kind, from_cpl, to_cpl, flags) in table {
        let branch = Branch { from: u64::MAX, to: 0x8000_1234, kind, from_cpl, to_cpl };
        let record = Record::of_branch(branch, 0x2221, 0x2625);
        assert_eq!(record.to_words(), [u64::MAX, 0x8000_1234, 0x2625_0000_2221 | flags << 16]);
        assert_eq!(Record::from_words(record.to_words()).branch(), Some(branch));
    }
    assert_eq!(Record::from_words([1, 2, 0x310 << 16]).branch(), None, "a kind that is not known");
    assert_eq!(ROWS.map(Record::branch), [None; 3]);
}

fn plain(rip: u64, session: u16, cpl: u8, cpu: u16) -> Record {
    Record { rip, cr3: 0x1000, session, flags: RecordFlags::new(cpl), cpu }
}

#[test]
fn a_ring_keeps_the_last_records_in_order() {
    for rooms in [1usize, 3, 4] {
        for appended in 0..=13 {
            let region = region(8 + 3 * rooms + 1);
            let writer = LogWriter::with_mode(&region, LogMode::Ring).unwrap();
            (0..appended).for_each(|rip| writer.append(plain(rip, 1, 0, 0)));
            assert_eq!(writer.count(), appended);
            let bytes = bytes(&region);
            let log = Log::new(&bytes).unwrap();
            let kept: Vec<u64> = log.records().map(|record| record.rip).collect();
            let first = appended.saturating_sub(rooms as u64);
            assert_eq!(kept, (first..appended).collect::<Vec<_>>(), "{rooms} rooms");
            assert_eq!(log.records().len(), kept.len());
            let header = log.header();
            assert_eq!((header.mode(), header.total(), header.lost()), (LogMode::Ring, appended, 0));
            assert_eq!(log.sums().count(), 0);
        }
    }
}

/// Checks the marks after 65535 laps, when they begin again.
#[test]
fn a_ring_goes_round_more_often_than_there_are_marks() {
    let region = region(8 + 3 * 2);
    let writer = LogWriter::with_mode(&region, LogMode::Ring).unwrap();
    (0..0x2_0005).for_each(|rip| writer.append(plain(rip, 1, 0, 0)));
    let bytes = bytes(&region);
    let kept: Vec<u64> = Log::new(&bytes).unwrap().records().map(|record| record.rip).collect();
    assert_eq!(kept, [0x2_0003, 0x2_0004]);
}

#[test]
fn a_log_of_sums_has_the_number_and_the_hash_of_each_processors_instructions() {
    let region = region(8 + 3 * 4);
    let writer = LogWriter::with_mode(&region, LogMode::Hash).unwrap();
    let branch = Branch { from: 1, to: 2, kind: BranchKind::Call, from_cpl: 3, to_cpl: 3 };
    for record in [
        plain(0x1000, 7, 3, 0),
        plain(0x55, 7, 0, 0),
        plain(0x1003, 7, 3, 0),
        Record { flags: RecordFlags::new(3).software_interrupt(), ..plain(9, 7, 3, 0) },
        Record::of_branch(branch, 7, 0),
        Record::of_time(5, 7, 0),
        plain(0x1000, 7, 3, 1),
        plain(0x1003, 8, 3, 0),
        plain(0x1003, 9, 3, 0),
    ] {
        writer.append(record);
    }
    let bytes = bytes(&region);
    let log = Log::new(&bytes).unwrap();
    // The hash of two addresses was computed by hand.
    let two = Sum { session: 7, cpu: 0, cpl: 3, instructions: 2, hash: 0xddee_fc94_8dc4_1886 };
    let sums: Vec<Sum> = log.sums().collect();
    assert_eq!(sums[0], two);
    let keys: Vec<_> = sums.iter().map(|sum| (sum.session, sum.cpu, sum.cpl, sum.instructions)).collect();
    assert_eq!(keys, [(7, 0, 3, 2), (7, 0, 0, 1), (7, 1, 3, 1), (8, 0, 3, 1)]);
    let header = log.header();
    assert_eq!((header.mode(), header.total(), header.lost(), header.len()), (LogMode::Hash, 5, 1, 0));
    assert_eq!((writer.count(), log.records().len()), (6, 0));
}

#[test]
fn a_log_that_is_started_again_in_another_mode_is_empty() {
    let region = region(8 + 3 * 2);
    for mode in [LogMode::Hash, LogMode::Full, LogMode::Ring, LogMode::Ring, LogMode::Full] {
        let writer = LogWriter::with_mode(&region, mode).unwrap();
        let bytes = bytes(&region);
        let log = Log::new(&bytes).unwrap();
        assert_eq!((log.records().count(), log.sums().count(), log.header().total()), (0, 0, 0), "{mode:?}");
        for count in 1..=5 {
            writer.append(plain(1, 1, 0, 0));
            assert_eq!(writer.count(), count, "{mode:?}");
        }
    }
}
