//! What the tests of the judges are made of: what a guest says, what the monitor logged, an image.

use std::path::PathBuf;

use crate::protocol::{Run, Transcript};
use crate::scratch::Scratch;
use crate::truth::{Flags, Record, Truth};

/// Where the image's code is.
pub(crate) const CODE: u64 = 0x1000;

/// The workload of which a guest says this: each line without the workload's name, which stands behind its first word. The
/// monitor's lines have none.
pub(crate) fn run(name: &str, text: &str) -> Run {
    let mut transcript = Transcript::default();
    transcript.line(&format!("run {name}")).unwrap();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let whole = if word == "monitor:" { line.into() } else { format!("{word} {name} {rest}") };
        transcript.line(&whole).unwrap();
    }
    assert!(transcript.other.is_empty(), "{:?}", transcript.other);
    transcript.runs.pop().unwrap()
}

/// A log of these records.
pub(crate) fn truth(records: impl IntoIterator<Item = Record>) -> Truth {
    let mut truth = Truth::default();
    records.into_iter().for_each(|record| truth.take_in(record));
    truth
}

/// An instruction in the kernel.
pub(crate) fn record(session: u16, rip: u64) -> Record {
    Record { rip, cr3: 0, session, flags: Flags::new(0), cpu: 0 }
}

/// An ELF file that has this code at [`CODE`].
pub(crate) fn image(scratch: &Scratch, code: &[u8]) -> PathBuf {
    let mut file = vec![];
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // An executable for x86-64.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    // Entry, program headers, section headers; flags.
    [0, 64, 0].iter().for_each(|word: &u64| file.extend(word.to_le_bytes()));
    file.extend([0; 4]);
    // Sizes and numbers: this header, a program header, a section header.
    [64, 56, 1, 64, 0, 0].iter().for_each(|half: &u16| file.extend(half.to_le_bytes()));
    // To be loaded, to be read and executed.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let len = code.len() as u64;
    [120, CODE, CODE, len, len, 1].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(code);
    let path = scratch.file("image");
    std::fs::write(&path, file).unwrap();
    path
}
