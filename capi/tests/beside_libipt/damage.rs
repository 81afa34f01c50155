//! Traces: those of the vectors, parts of them, and made-up ones, damaged.

use fastrand::Rng;
use std::{fs, path::Path};

pub(crate) const PSB: [u8; 16] = *b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";

/// The recorded traces of the vectors.
pub(crate) fn recorded() -> Vec<Vec<u8>> {
    let mut traces = vec![];
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors"), &mut traces);
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

/// A short trace: a part of a recorded one or random packets, with PSBs, some bytes changed, cut anywhere.
pub(crate) fn damaged(rng: &mut Rng, recorded: &[Vec<u8>]) -> Vec<u8> {
    let mut trace = vec![0; rng.usize(..20)];
    for _ in 0..rng.usize(1..4) {
        trace.extend_from_slice(&PSB);
        if rng.bool() {
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
    trace
}

/// How many of them a test tries.
pub(crate) fn count() -> u64 {
    if std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1") { 100_000 } else { 3000 }
}
