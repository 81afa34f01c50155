//! Raw samples in perf's format: reading and writing.

use super::*;
use crate::ErrorKind;

/// Capabilities, and perf's record for them: the size, then the numbers of the registers.
const LAYOUTS: [(u32, u32, &[u8]); 6] = [
    (0x07, 28, &[1, 2, 3]),
    (0x3ff, 36, &[1, 2, 3, 4]),
    (0x07, 60, &[5, 6, 7, 8, 9, 10, 11]),
    (0x3ff, 68, &[5, 6, 7, 8, 9, 10, 11, 12]),
    (0x407, 68, &[5, 6, 7, 8, 9, 10, 11, 13]),
    (0x7ff, 76, &[5, 6, 7, 8, 9, 10, 11, 12, 13]),
];

fn bytes(caps: u32, size: u32, registers: &[u8]) -> Vec<u8> {
    let mut bytes = [size.to_le_bytes(), caps.to_le_bytes()].concat();
    for &n in registers {
        bytes.extend_from_slice(&[n, 0, 0, 0, 0, 0, 0, 0x80 | n]);
    }
    bytes
}

#[test]
fn raw_samples_are_read_and_written_as_perf_has_them() {
    for (caps, size, registers) in LAYOUTS {
        let raw = bytes(caps, size, registers);
        let (record, len) = RawSample::parse(&raw).unwrap();
        assert_eq!((len, record.caps), (raw.len(), Caps(caps)));
        let value = |n: u8| match registers.contains(&n) {
            true => u64::from(n) | u64::from(0x80 | n) << 56,
            false => 0,
        };
        let expected = match registers[0] {
            1 => RawRegisters::Fetch(FetchRegisters {
                ctl: value(1),
                linear: value(2),
                physical: value(3),
                extended: value(4),
            }),
            _ => RawRegisters::Op(OpRegisters {
                ctl: value(5),
                rip: value(6),
                data: value(7),
                data2: value(8),
                data3: value(9),
                dc_linear: value(10),
                dc_physical: value(11),
                br_target: value(12),
                data4: value(13),
            }),
        };
        assert_eq!(record.kind, expected);
        let mut out = [0xa5; RawSample::MAX_BYTES + 1];
        assert_eq!(record.emit(&mut out), Ok(len));
        assert_eq!((&out[..len], out[len]), (&raw[..], 0xa5));
        for room in 0..len {
            let kind = ErrorKind::Truncated { bytes: room, needed: len };
            assert_eq!(record.emit(&mut out[..room]), Err(kind));
        }
        for cut in 0..len {
            let needed = if cut < 4 { 4 } else { len };
            assert_eq!(RawSample::parse(&raw[..cut]), Err(ErrorKind::Truncated { bytes: cut, needed }));
        }
    }
}

#[test]
fn a_size_that_the_capabilities_deny_is_refused() {
    for (caps, size) in [
        (0x07, 36),
        (0x3ff, 28),
        (0x07, 68),
        (0x3ff, 60),
        (0x3ff, 76),
        (0x7ff, 68),
        (0x07, 4),
        (0x07, 29),
        (0x07, 64),
    ] {
        let mut raw = bytes(caps, size, &[1; 10]);
        raw.truncate(4 + size as usize);
        assert_eq!(RawSample::parse(&raw), Err(ErrorKind::SampleSize { size, caps }));
    }
    for size in 0..4 {
        let raw = bytes(0x07, size, &[1; 10]);
        let kind = ErrorKind::Truncated { bytes: size as usize, needed: 4 };
        assert_eq!(RawSample::parse(&raw), Err(kind));
    }
}

#[test]
fn records_follow_each_other_and_end_with_an_error() {
    let mut stream = Vec::new();
    for (caps, size, registers) in LAYOUTS {
        stream.extend(bytes(caps, size, registers));
    }
    let whole: Result<Vec<_>, _> = RawSamples::new(&stream).collect();
    assert_eq!(whole.unwrap().len(), LAYOUTS.len());
    let end = stream.len();
    stream.extend(u32::MAX.to_le_bytes());
    let mut records = RawSamples::new(&stream);
    let error = records.by_ref().find_map(Result::err).unwrap();
    assert_eq!(error.offset, end as u64);
    assert_eq!(records.next(), None);
    assert_eq!(error.to_string(), std::format!("{end:#x}: 4 bytes where 4294967299 are needed"));
}

#[test]
fn a_sample_becomes_the_record_that_it_came_from() {
    let mut registers = OpRegisters { ctl: OP_VAL, rip: 1, ..OpRegisters::default() };
    let record = RawSample { caps: ZEN4.caps, kind: RawRegisters::Op(registers) };
    let sample = record.sample(Part { caps: Caps(0), ..ZEN4 }).unwrap();
    assert_eq!(RawSample::from(&sample), record);
    registers.ctl = 0;
    assert_eq!(RawSample { kind: RawRegisters::Op(registers), ..record }.sample(ZEN4), None);
    let fetch = RawSample {
        kind: RawRegisters::Fetch(FetchRegisters { ctl: FETCH_VAL, ..Default::default() }),
        ..record
    };
    assert_eq!(RawSample::from(&fetch.sample(ZEN4).unwrap()), fetch);
}

#[test]
fn nothing_that_registers_hold_is_too_much() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..crate::rounds(20_000) {
        let part = Part { family: random.u8(..), model: random.u8(..), caps: Caps(random.u32(..)) };
        let mut raw = [0; RawSample::MAX_BYTES];
        random.fill(&mut raw);
        let mut words = [0; 9].map(|_: u64| random.u64(..));
        words[0] |= OP_VAL | FETCH_VAL;
        let [ctl, rip, data, data2, data3, dc_linear, dc_physical, br_target, data4] = words;
        let registers =
            OpRegisters { ctl, rip, data, data2, data3, dc_linear, dc_physical, br_target, data4 };
        let sample = op(part, registers);
        assert!(sample.access().is_some() || data3 & 3 == 0);
        assert_eq!(sample.branch().is_some(), data >> 37 & 1 == 1);
        let _ =
            std::format!("{sample:?} {:?}", sample.access().map(|access| (access.source(), access.bytes())));
        let record = RawSample::from(&Sample::Op(sample));
        let len = record.emit(&mut raw).unwrap();
        let read = RawSample::parse(&raw).unwrap();
        assert_eq!(read.1, len);
        assert_eq!(RawSample::from(&read.0.sample(part).unwrap()), read.0);
        random.fill(&mut raw);
        let _ = RawSample::parse(&raw);
        let _ = RawSample::parse_raw(&raw[..random.usize(..raw.len())]);
    }
}
