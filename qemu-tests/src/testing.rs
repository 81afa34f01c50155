//! Builds what the tests of the judges need: a guest's lines, a monitor's log, an ELF image.

use std::path::PathBuf;

use crate::filter::Filter;
use crate::report::{Run, Transcript};
use crate::scratch::Scratch;
use crate::truth::{Record, RecordFlags, Truth};

/// Where the image's code is.
pub(crate) const CODE: u64 = 0x1000;

/// Parses the run of workload `name` from these lines. In a guest's lines the workload's name is added after the first
/// word; the monitor's lines have no such name.
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

/// The filter that a guest declares by this.
pub(crate) fn filter(text: &str) -> Filter {
    run("a", &format!("filter {text}")).filter
}

/// A log of these records.
pub(crate) fn truth(records: impl IntoIterator<Item = Record>) -> Truth {
    let mut truth = Truth::default();
    records.into_iter().for_each(|record| truth.take_in(record));
    truth
}

/// An instruction in the kernel.
pub(crate) fn record(session: u16, rip: u64) -> Record {
    Record { rip, cr3: 0, session, flags: RecordFlags::new(0), cpu: 0 }
}

/// An ELF file that has this code at [`CODE`].
pub(crate) fn image(scratch: &Scratch, code: &[u8]) -> PathBuf {
    let mut file = vec![];
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // e_type: an executable; e_machine: x86-64.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    // Entry point, offsets of program headers and section headers, then flags.
    [0, 64, 0].iter().for_each(|word: &u64| file.extend(word.to_le_bytes()));
    file.extend([0; 4]);
    // Sizes and counts: this header, program headers, section headers.
    [64, 56, 1, 64, 0, 0].iter().for_each(|half: &u16| file.extend(half.to_le_bytes()));
    // One segment to load, readable and executable.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let len = code.len() as u64;
    [120, CODE, CODE, len, len, 1].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(code);
    let path = scratch.file("image");
    std::fs::write(&path, file).unwrap();
    path
}
