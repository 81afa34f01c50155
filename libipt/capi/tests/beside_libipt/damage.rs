//! Damaged traces: those of the vectors, parts of them, and synthetic ones.

use fastrand::Rng;
use std::{fs, path::Path};

pub(crate) const PSB: [u8; 16] = *b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";

/// Returns the recorded traces of the vectors, without those that have packets of Event Trace, unknown to 2.0.5.
pub(crate) fn recorded() -> Vec<Vec<u8>> {
    let mut traces = recorded_with_event_trace();
    traces.retain(|trace| !has_event_trace(trace));
    traces
}

/// Returns whether there may be packets of Event Trace.
pub(crate) fn has_event_trace(trace: &[u8]) -> bool {
    trace.windows(2).any(|bytes| matches!(bytes, [0x02, 0x13 | 0x53]))
}

/// Returns all recorded traces of the vectors.
pub(crate) fn recorded_with_event_trace() -> Vec<Vec<u8>> {
    let mut traces = vec![];
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors"), &mut traces);
    assert!(traces.len() > 5, "{}", traces.len());
    traces
}

fn collect(folder: &Path, traces: &mut Vec<Vec<u8>>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, traces);
        } else {
            let bytes = fs::read(&path).unwrap();
            if bytes.windows(PSB.len()).any(|window| window == PSB) {
                traces.push(bytes);
            }
        }
    }
}

/// First bytes of packets, and bytes that change their meaning.
const BYTES: [u8; 30] = [
    0x00, 0x02, 0x02, 0x02, 0x03, 0x07, 0x0d, 0x13, 0x19, 0x1d, 0x22, 0x23, 0x2d, 0x31, 0x43, 0x4d, 0x53,
    0x59, 0x61, 0x73, 0x82, 0x83, 0x88, 0x99, 0xa2, 0xa3, 0xc2, 0xc3, 0xd9, 0xf3,
];

/// The first bytes of packets, and the number of bytes that follow. Packets with an address are there with every size.
const PACKETS: [(&[u8], usize); 36] = [
    (&[0x00], 0),
    (&[0x2d], 2),
    (&[0x4d], 4),
    (&[0x6d], 6),
    (&[0x0d], 0),
    (&[0x1d], 0),
    (&[0x3d], 2),
    (&[0x7d], 6),
    (&[0xdd], 8),
    (&[0x31], 2),
    (&[0x71], 6),
    (&[0x01], 0),
    (&[0x21], 2),
    (&[0x19], 7),
    (&[0x59], 1),
    (&[0x99, 0x01], 0),
    (&[0x99, 0x02], 0),
    (&[0x99, 0x20], 0),
    (&[0x99, 0x22], 0),
    (&[0x99, 0x21], 0),
    (&[0x02, 0x03], 2),
    (&[0x02, 0x43], 6),
    (&[0x02, 0xc8], 5),
    (&[0x02, 0x73, 1, 1, 0, 1, 0], 0),
    (&[0x02, 0xf3], 0),
    (&[0x02, 0x83], 0),
    (&[0x02, 0x23], 0),
    (&[0x02, 0x62], 0),
    (&[0x02, 0xe2], 0),
    (&[0x02, 0xc2], 8),
    (&[0x02, 0x22], 2),
    (&[0x02, 0xa2], 5),
    (&[0x02, 0x12], 4),
    (&[0x02, 0xb2], 8),
    (&[0x02, 0xc3, 0x88], 8),
    (&[0x02, 0xa3], 6),
];

/// Adds any packet: half of the time one that answers a query.
fn packet(rng: &mut Rng, trace: &mut Vec<u8>) {
    if rng.u8(..4) == 0 {
        trace.push(rng.u8(2..) << 1);
        return;
    }
    let (first, rest) = PACKETS[rng.usize(..PACKETS.len())];
    trace.extend(first);
    trace.extend((0..rest).map(|_| if rng.bool() { 0 } else { rng.u8(..) }));
}

/// Returns a short trace: a part of a recorded one, whole packets or random bytes, with PSBs, some bytes changed, cut
/// anywhere.
pub(crate) fn damaged(rng: &mut Rng, recorded: &[Vec<u8>]) -> Vec<u8> {
    let mut trace = vec![0; rng.usize(..20)];
    for _ in 0..rng.usize(1..4) {
        trace.extend_from_slice(&PSB);
        let kind = rng.u8(..3);
        if kind == 0 {
            if rng.u8(..4) != 0 {
                // The mode is 16, 32 or 64 bits.
                trace.extend([0x99, rng.u8(..3), 0x3d, rng.u8(..), rng.u8(..16)]);
            }
            for _ in 0..rng.usize(..6) {
                packet(rng, &mut trace);
            }
            trace.extend([0x02, 0x23]);
            for _ in 0..rng.usize(..40) {
                match rng.u8(..3) {
                    0 => packet(rng, &mut trace),
                    1 => trace.extend([0x2d, rng.u8(..), rng.u8(..16)]),
                    _ => trace.push(rng.u8(2..) << 1),
                }
            }
        } else if kind == 1 {
            let source = &recorded[rng.usize(..recorded.len())];
            let from = rng.usize(..source.len());
            trace.extend(&source[from..source.len().min(from + rng.usize(..300))]);
        } else {
            for _ in 0..rng.usize(..100) {
                trace.push(if rng.bool() { BYTES[rng.usize(..BYTES.len())] } else { rng.u8(..) });
            }
        }
    }
    for _ in 0..rng.usize(..6) {
        let at = rng.usize(..trace.len());
        trace[at] = if rng.bool() { BYTES[rng.usize(..BYTES.len())] } else { rng.u8(..) };
    }
    trace.truncate(trace.len() - rng.usize(..trace.len().min(20)));
    remove_event_trace(&mut trace);
    trace
}

/// Replaces packets of Event Trace, which 2.0.5 does not know, by others.
fn remove_event_trace(trace: &mut [u8]) {
    for at in 1..trace.len() {
        if matches!(trace[at - 1..], [0x02, 0x13 | 0x53, ..]) {
            trace[at] ^= 0x80;
        }
    }
}

/// Inserts some packets of Event Trace at random places.
pub(crate) fn add_event_trace(rng: &mut Rng, trace: &mut Vec<u8>) {
    for _ in 0..rng.usize(..8) {
        let at = rng.usize(..trace.len());
        let mut packets = vec![];
        if rng.bool() {
            packets.extend([0x02, 0x53, rng.u8(..4)]);
            packets.extend(rng.u64(..).to_le_bytes());
        }
        // With an address, or without one.
        packets.extend([0x02, 0x13, rng.u8(..16) | if rng.bool() { 0x80 } else { 0 }, rng.u8(..)]);
        if rng.bool() {
            packets.extend([0x3d, rng.u8(..), rng.u8(..16)]);
        }
        trace.splice(at..at, packets);
    }
}

/// Returns PSB+s with addresses of code, followed by packets that the code may need, and seldom by others.
pub(crate) fn plausible(rng: &mut Rng) -> Vec<u8> {
    let mut trace = vec![];
    for _ in 0..rng.usize(1..4) {
        trace.extend(PSB);
        // The mode is mostly 64 bits.
        trace.extend([0x99, [0, 1, 1, 1, 2][rng.usize(..5)], 0x3d, rng.u8(..), rng.u8(..16), 0x02, 0x23]);
        for _ in 0..rng.usize(..40) {
            match rng.u8(..16) {
                0 => packet(rng, &mut trace),
                1..5 => trace.extend([0x2d, rng.u8(..), rng.u8(..16)]),
                _ => trace.push(rng.u8(2..) << 1),
            }
        }
    }
    remove_event_trace(&mut trace);
    trace
}

/// Returns a trace with some bytes changed, and perhaps a packet more.
pub(crate) fn changed(rng: &mut Rng, trace: &[u8]) -> Vec<u8> {
    let mut trace = trace.to_vec();
    for _ in 0..rng.usize(..4) {
        let at = rng.usize(..trace.len());
        if rng.bool() {
            trace[at] = if rng.bool() { BYTES[rng.usize(..BYTES.len())] } else { rng.u8(..) };
        } else {
            let mut more = vec![];
            packet(rng, &mut more);
            trace.splice(at..at, more);
        }
    }
    remove_event_trace(&mut trace);
    trace
}

/// Returns true if a part of a PSB is directly before a PSB, or one byte before it. libipt 2.0.5 may search backward
/// forever there, because it finds that PSB from this part, too.
pub(crate) fn has_run(trace: &[u8]) -> bool {
    let is_part = |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes == &PSB[..8] || bytes == &PSB[1..9]);
    let mut psbs = (8..trace.len()).filter(|&at| trace[at..].starts_with(&PSB));
    psbs.any(|at| {
        is_part(Some(&trace[at - 8..at])) || is_part(trace[..at - 1].last_chunk::<8>().map(|part| &part[..]))
    })
}

/// Returns the number of damaged traces that a test tries.
pub(crate) fn count() -> u64 {
    if std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1") { 100_000 } else { 20_000 }
}
