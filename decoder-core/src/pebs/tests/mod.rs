//! PEBS records against the manual's tables.

extern crate std;

mod architectural;

use std::{string::ToString, vec, vec::Vec};

use super::*;
use crate::ErrorKind;

fn registers() -> Registers {
    Registers {
        rflags: 0x10,
        rip: 0x11,
        rax: 0x12,
        rbx: 0x13,
        rcx: 0x14,
        rdx: 0x15,
        rsi: 0x16,
        rdi: 0x17,
        rbp: 0x18,
        rsp: 0x19,
        r8_r15: [0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27],
    }
}

/// Returns a record with every field of the fixed formats.
fn full() -> PebsRecord<'static> {
    PebsRecord {
        registers: Some(registers()),
        eventing_ip: Some(0x31),
        global_status: Some(0x32),
        applicable_counters: Some(0x33),
        memory: Some(Memory { address: 0x34, source: DataSourceEncoding(0x35), latency: 0x36 }),
        tx_abort: Some(TxAbort(0x37)),
        tsc: Some(0x38),
        ..PebsRecord::default()
    }
}

/// Offset and value, typed from "64-bit PEBS Record Format".
const REGISTERS: [(usize, u8); 18] = [
    (0x00, 0x10),
    (0x08, 0x11),
    (0x10, 0x12),
    (0x18, 0x13),
    (0x20, 0x14),
    (0x28, 0x15),
    (0x30, 0x16),
    (0x38, 0x17),
    (0x40, 0x18),
    (0x48, 0x19),
    (0x50, 0x20),
    (0x58, 0x21),
    (0x60, 0x22),
    (0x68, 0x23),
    (0x70, 0x24),
    (0x78, 0x25),
    (0x80, 0x26),
    (0x88, 0x27),
];

#[test]
fn fixed_formats_have_their_fields_where_the_tables_have_them() {
    // The format, its number, its size, and its fields after the registers: from the tables of the Core i7 and of the
    // 4th and the 6th generation.
    type Row = (Format, u8, usize, &'static [(usize, u8)]);
    let rows: [Row; 4] = [
        (Format::Registers, 0, 144, &[]),
        (Format::Latency, 1, 176, &[(0x90, 0x32), (0x98, 0x34), (0xa0, 0x35), (0xa8, 0x36)]),
        (
            Format::Transaction,
            2,
            192,
            &[(0x90, 0x32), (0x98, 0x34), (0xa0, 0x35), (0xa8, 0x36), (0xb0, 0x31), (0xb8, 0x37)],
        ),
        (
            Format::Time,
            3,
            200,
            &[
                (0x90, 0x33),
                (0x98, 0x34),
                (0xa0, 0x35),
                (0xa8, 0x36),
                (0xb0, 0x31),
                (0xb8, 0x37),
                (0xc0, 0x38),
            ],
        ),
    ];
    for (format, number, size, fields) in rows {
        assert_eq!(Format::from_capabilities(number), Some(format));
        let mut expected = vec![0; size];
        for &(at, value) in REGISTERS.iter().chain(fields) {
            expected[at] = value;
        }
        let mut bytes = vec![0xaa; size + 8];
        assert_eq!(full().emit(format, &mut bytes), Ok(size), "{format:?}");
        assert_eq!(bytes[..size], expected, "{format:?}");
        assert_eq!(bytes[size..], [0xaa; 8], "{format:?}");
        let (parsed, len) = PebsRecord::parse(format, &bytes).expect("a whole record");
        assert_eq!(len, size);
        let has = |at| fields.iter().any(|field| field.0 == at);
        let expected = PebsRecord {
            eventing_ip: full().eventing_ip.filter(|_| has(0xb0)),
            global_status: full().global_status.filter(|_| number == 1 || number == 2),
            applicable_counters: full().applicable_counters.filter(|_| number == 3),
            memory: full().memory.filter(|_| has(0x98)),
            tx_abort: full().tx_abort.filter(|_| has(0xb8)),
            tsc: full().tsc.filter(|_| has(0xc0)),
            ..full()
        };
        assert_eq!(parsed, expected, "{format:?}");
        for len in 0..size {
            let error = ErrorKind::Truncated { bytes: len, needed: size };
            assert_eq!(PebsRecord::parse(format, &bytes[..len]), Err(error), "{format:?} {len}");
            assert_eq!(full().emit(format, &mut bytes[..len]), Err(error), "{format:?} {len}");
        }
    }
    assert_eq!(Format::from_capabilities(7), None);
}

#[test]
fn the_32_bit_format_has_ten_registers() {
    let record =
        PebsRecord { registers: Some(Registers { r8_r15: [0; 8], ..registers() }), ..PebsRecord::default() };
    let mut bytes = [0xaa; 44];
    assert_eq!(record.emit(Format::Bits32, &mut bytes), Ok(40));
    let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let expected = [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0xaaaa_aaaa];
    assert_eq!(words, expected);
    assert_eq!(PebsRecord::parse(Format::Bits32, &bytes), Ok((record, 40)));
    let wide =
        PebsRecord { registers: Some(Registers { rsi: 1 << 32, ..registers() }), ..PebsRecord::default() };
    let kind = ErrorKind::TooWide { value: 1 << 32 };
    assert_eq!(wide.emit(Format::Bits32, &mut bytes), Err(kind));
    for len in 0..40 {
        let kind = ErrorKind::Truncated { bytes: len, needed: 40 };
        assert_eq!(PebsRecord::parse(Format::Bits32, &bytes[..len]), Err(kind));
    }
}

/// Returns the words of an adaptive record with all groups and two branches, by groups.
fn adaptive_words() -> Vec<u64> {
    let size = 32 + 32 + 144 + 256 + 2 * 24;
    let mut words = vec![0xf | 1 << 24 | 0x99 << 32 | size << 48, 0x31, 0x33, 0x38];
    words.extend([0x34, 0x35, 0x36, 0x37]);
    // RFLAGS, RIP, then RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    words.extend([0x10, 0x11, 0x12, 0x14, 0x15, 0x13, 0x19, 0x18, 0x16, 0x17]);
    words.extend(0x20..0x28);
    words.extend(0x100..0x120);
    words.extend([0x41, 0x42, 0x43, 0x51, 0x52, 0x53]);
    words
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn adaptive_records_have_the_groups_that_they_say() {
    let all = adaptive_words();
    let xmm: [u8; 256] = bytes(&all[26..58]).try_into().expect("sixteen registers");
    let lbrs = [
        SampledBranch { from: 0x41, to: 0x42, info: 0x43 }.emit(),
        SampledBranch { from: 0x51, to: 0x52, info: 0x53 }.emit(),
    ];
    let whole = PebsRecord {
        global_status: None,
        retire_latency: Some(0x99),
        xmm: Some(&xmm),
        branches: Some(SampledBranches::new(&lbrs)),
        ..full()
    };
    for groups in 0..16_u64 {
        let has = |bit: u64| groups & 1 << bit != 0;
        let record = PebsRecord {
            memory: whole.memory.filter(|_| has(0)),
            tx_abort: whole.tx_abort.filter(|_| has(0)),
            registers: whole.registers.filter(|_| has(1)),
            xmm: whole.xmm.filter(|_| has(2)),
            branches: whole.branches.filter(|_| has(3)),
            ..whole
        };
        let mut words = all[..4].to_vec();
        for (bit, range) in [(0, 4..8), (1, 8..26), (2, 26..58), (3, 58..64)] {
            if has(bit) {
                words.extend(&all[range]);
            }
        }
        let count = if has(3) { 1 << 24 } else { 0 };
        words[0] = groups | count | 0x99 << 32 | (words.len() as u64 * 8) << 48;
        let expected = bytes(&words);
        assert_eq!(
            PebsRecord::parse(Format::Adaptive, &expected),
            Ok((record, expected.len())),
            "{groups:#x}"
        );
        let mut emitted = vec![0xaa; expected.len()];
        assert_eq!(record.emit(Format::Adaptive, &mut emitted), Ok(expected.len()), "{groups:#x}");
        assert_eq!(emitted, expected, "{groups:#x}");
        for len in 0..expected.len() {
            let needed = if len < 32 { 32 } else { expected.len() };
            let error = ErrorKind::Truncated { bytes: len, needed };
            assert_eq!(
                PebsRecord::parse(Format::Adaptive, &expected[..len]),
                Err(error),
                "{groups:#x} {len}"
            );
            let needed = expected.len();
            let error = ErrorKind::Truncated { bytes: len, needed };
            assert_eq!(record.emit(Format::Adaptive, &mut emitted[..len]), Err(error), "{groups:#x} {len}");
        }
    }
    let found: Vec<_> = whole.branches.expect("two").iter().map(|branch| branch.from).collect();
    assert_eq!(found, [0x41, 0x51]);
}

#[test]
fn a_record_of_format_6_has_counters_after_everything_else() {
    // General-purpose counters, fixed-function ones, metrics; the record format's bits 4 and 5.
    for (general, fixed, metrics, format) in [
        (0b101, 0b10, false, 1 << 4),
        (0b101, 0b10, true, 0b11 << 4),
        (0, 0, true, 1 << 5),
        (0, 0b1, false, 1 << 4),
        (!0, 0xffff, true, 0b11 << 4),
    ] {
        let values: Vec<u64> = (0x1000..).take(general_and(general, fixed, metrics)).collect();
        let in_memory: Vec<[u8; 8]> = values.iter().map(|value| value.to_le_bytes()).collect();
        for others in [0, 0xf] {
            let all = adaptive_words();
            let mut words = if others == 0 { all[..4].to_vec() } else { all };
            words.extend([u64::from(general) | fixed << 32, if metrics { 3 } else { 0 }]);
            words.extend(&values);
            let count = if others == 0 { 0 } else { 1 << 24 };
            words[0] = others | format | count | (words.len() as u64 * 8) << 48;
            let bytes = bytes(&words);
            let (record, size) = PebsRecord::parse(Format::Adaptive, &bytes).unwrap();
            assert_eq!(size, bytes.len());
            let counters = record.counters.unwrap();
            assert_eq!(CounterValues::new(general, fixed as u32, metrics, &in_memory), Some(counters));
            let read: Vec<u64> = counters.general().chain(counters.fixed()).map(|(_, value)| value).collect();
            assert_eq!(read, values[..read.len()]);
            let numbers = |bits: u64| (0..32).filter(move |n| bits >> n & 1 == 1);
            assert!(counters.general().map(|(n, _)| n).eq(numbers(general.into())));
            assert!(counters.fixed().map(|(n, _)| n).eq(numbers(fixed)));
            let last = values.last_chunk().map(|[slots, metrics]| (*slots, *metrics));
            assert_eq!(counters.metrics(), last.filter(|_| metrics));
            let mut emitted = vec![0xaa; bytes.len()];
            assert_eq!(record.emit(Format::Adaptive, &mut emitted), Ok(bytes.len()));
            assert_eq!(emitted, bytes);
            for len in 0..bytes.len() {
                let needed = if len < 32 { 32 } else { bytes.len() };
                let error = ErrorKind::Truncated { bytes: len, needed };
                assert_eq!(PebsRecord::parse(Format::Adaptive, &bytes[..len]), Err(error), "{len}");
            }
        }
        assert_eq!(CounterValues::new(general, fixed as u32, metrics, &in_memory[1..]), None);
    }
}

/// Returns the number of values that these counters have.
fn general_and(general: u32, fixed: u64, metrics: bool) -> usize {
    (general.count_ones() + fixed.count_ones()) as usize + if metrics { 2 } else { 0 }
}

#[test]
fn counters_that_contradict_the_size_or_are_not_known_are_refused() {
    for (header, size, kind) in [
        ([0b11, 0], 48, ErrorKind::RecordSize { size: 48, groups: 64 }),
        ([0b1, 0], 64, ErrorKind::RecordSize { size: 64, groups: 56 }),
        ([0, 1], 64, ErrorKind::UnknownGroups { format: 1 << 4 }),
        ([0, 7], 64, ErrorKind::UnknownGroups { format: 1 << 4 }),
    ] {
        let bytes = bytes(&[1 << 4 | size << 48, 0, 0, 0, header[0], header[1], 0, 0]);
        assert_eq!(PebsRecord::parse(Format::Adaptive, &bytes), Err(kind), "{header:x?}");
    }
}

#[test]
fn a_formats_number_tells_its_records_and_where_resets_lie() {
    use Format::*;
    for (number, format, resets) in [
        (0, Some(Registers), 8),
        (1, Some(Latency), 8),
        (2, Some(Transaction), 8),
        (3, Some(Time), 8),
        (4, Some(Adaptive), 8),
        (5, Some(Adaptive), 32),
        (6, Some(Adaptive), 32),
        (7, None, 32),
        (14, None, 32),
        (15, Some(Architectural), 32),
    ] {
        assert_eq!((Format::from_capabilities(number), Format::general_resets(number)), (format, resets));
    }
}

#[test]
fn adaptive_records_that_contradict_themselves_are_refused() {
    let rows = [
        (32_u64 << 48, None),
        (0, Some(ErrorKind::RecordSize { size: 0, groups: 32 })),
        (31 << 48, Some(ErrorKind::RecordSize { size: 31, groups: 32 })),
        (33 << 48, Some(ErrorKind::RecordSize { size: 33, groups: 32 })),
        (1 | 32 << 48, Some(ErrorKind::RecordSize { size: 32, groups: 64 })),
        (1 << 6 | 32 << 48, Some(ErrorKind::UnknownGroups { format: 1 << 6 })),
        (1 << 23 | 32 << 48, Some(ErrorKind::UnknownGroups { format: 1 << 23 })),
        (8 | 32 << 24 | 800 << 48, Some(ErrorKind::LastBranchCount { count: 33 })),
        (8 | 255 << 24 | 800 << 48, Some(ErrorKind::LastBranchCount { count: 256 })),
        // Without the group of branches, the number of branches does not matter.
        (255 << 24 | 32 << 48, None),
    ];
    for (first, expected) in rows {
        let bytes = bytes(&[first, 0, 0, 0, 0]);
        let parsed = PebsRecord::parse(Format::Adaptive, &bytes).map(|(_, size)| size);
        assert_eq!(parsed.err(), expected, "{first:#x}");
    }
    for count in [0, 33, 257] {
        let lbrs = vec![[0; 24]; count];
        let record = PebsRecord { branches: Some(SampledBranches::new(&lbrs)), ..PebsRecord::default() };
        let error = ErrorKind::LastBranchCount { count };
        assert_eq!(record.emit(Format::Adaptive, &mut [0; 8192]), Err(error));
    }
}

#[test]
fn a_buffer_is_read_to_its_end_or_to_what_is_wrong() {
    let mut buffer = vec![0; 3 * 192];
    for (slot, chunk) in buffer.chunks_exact_mut(192).enumerate() {
        let record = PebsRecord { eventing_ip: Some(slot as u64), ..full() };
        record.emit(Format::Transaction, chunk).expect("it fits");
    }
    let ips: Vec<_> = PebsRecords::new(&buffer, Format::Transaction)
        .map(|record| record.expect("a whole record").eventing_ip)
        .collect();
    assert_eq!(ips, [Some(0), Some(1), Some(2)]);
    let cut: Vec<_> = PebsRecords::new(&buffer[..2 * 192 + 1], Format::Transaction).collect();
    assert_eq!(cut.len(), 3);
    let error = cut[2].expect_err("it is cut");
    assert_eq!(error.to_string(), "0x180: 1 bytes where 192 are needed");
    // Records of different sizes.
    let basic = bytes(&[32 << 48, 7, 0, 0]);
    let mixed = [bytes(&adaptive_words()), basic.clone(), basic].concat();
    let ips: Vec<_> = PebsRecords::new(&mixed, Format::Adaptive)
        .map(|record| record.map(|record| (record.eventing_ip, record.next_ip())))
        .collect();
    assert_eq!(ips, [Ok((Some(0x31), Some(0x11))), Ok((Some(7), None)), Ok((Some(7), None))]);
}

#[test]
fn after_an_abort_only_the_ips_mean_something() {
    let rows: [(u64, bool); 5] =
        [(0, true), (0xffff_ffff, true), (1 << 32, false), (1 << 33, false), (1 << 34, true)];
    for (bits, valid) in rows {
        let record = PebsRecord { tx_abort: Some(TxAbort(bits)), ..full() };
        assert_eq!(record.valid_registers().is_some(), valid, "{bits:#x}");
        assert_eq!(record.valid_memory().is_some(), valid, "{bits:#x}");
        assert_eq!(record.next_ip(), Some(0x11));
    }
    assert_eq!(PebsRecord::default().valid_registers(), None);
}

#[test]
fn fields_of_fields_are_the_bits_of_the_tables() {
    let abort = TxAbort(0x1234_5678);
    assert_eq!((abort.cycles(), abort.aborted()), (0x1234_5678, false));
    type Flag = (u32, fn(TxAbort) -> bool);
    let flags: [Flag; 8] = [
        (32, TxAbort::hle),
        (33, TxAbort::rtm),
        (34, TxAbort::instruction),
        (35, TxAbort::non_instruction),
        (36, TxAbort::retry),
        (37, TxAbort::data_conflict),
        (38, TxAbort::capacity_writes),
        (39, TxAbort::capacity_reads),
    ];
    for (bit, _) in flags {
        for (of, flag) in flags {
            assert_eq!(flag(TxAbort(1 << bit)), of == bit, "bit {bit}");
        }
    }
    let rows: [(u64, u8, bool, bool, bool); 4] = [
        (0x0f, 0xf, true, false, false),
        (0x10, 0, false, true, false),
        (0x20, 0, false, false, true),
        (0x3e, 0xe, false, true, true),
    ];
    for (bits, encoding, hit, stlb_miss, locked) in rows {
        let source = DataSourceEncoding(bits);
        assert_eq!((source.source(), source.store_hit()), (encoding, hit), "{bits:#x}");
        assert_eq!((source.stlb_miss(), source.locked()), (stlb_miss, locked), "{bits:#x}");
    }
}
