//! Builds the inputs for the tests of the judges: a guest's lines, a monitor's log, an ELF image.

use pugmark_protocol::Samples;
use std::path::PathBuf;

use crate::filter::Filter;
use crate::report::{Run, SampledSession, Transcript};
use crate::scratch::Scratch;
use crate::truth::{Branch, BranchKind, Record, RecordFlags, Truth, hash};

/// The address of the image's code.
pub(crate) const CODE: u64 = 0x1000;

/// Parses the run of workload `name` from these lines. In a guest's lines the workload's name is added after the first
/// word; the monitor's lines have no such name.
pub(crate) fn run(name: &str, text: &str) -> Run {
    let mut transcript = Transcript::default();
    transcript.line(&format!("run {name}")).unwrap();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "monitor:" => transcript.monitor_line(line).unwrap(),
            _ => transcript.line(&format!("{word} {name} {rest}")).unwrap(),
        }
    }
    assert!(transcript.other.is_empty(), "{:?}", transcript.other);
    transcript.runs.pop().unwrap()
}

/// Parses the filter that a guest declares.
pub(crate) fn filter(text: &str) -> Filter {
    run("a", &format!("filter {text}")).filter
}

/// Returns a log of these records.
pub(crate) fn truth(records: impl IntoIterator<Item = Record>) -> Truth {
    let mut truth = Truth::default();
    records.into_iter().for_each(|record| truth.take_in(record));
    truth
}

/// Returns a record of an instruction in the kernel.
pub(crate) fn record(session: u16, rip: u64) -> Record {
    Record { rip, cr3: 0, session, flags: RecordFlags::new(0).traced(), cpu: 0 }
}

/// Writes an ELF file that has this code at [`CODE`].
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

/// Returns a guest that has decoded the first `front` instructions of `all`, and after a gap of `gap` instructions the
/// rest.
pub(crate) fn decoded(name: &str, all: u64, front: u64, gap: u64, after: &str, words: &str) -> (Run, Truth) {
    let addresses: Vec<u64> = (0..all).map(|n| 0x1000 + n).collect();
    let [first, last] = [&addresses[..front as usize], &addresses[(front + gap) as usize..]];
    let there: Vec<u64> = [first, last].concat();
    let piece = |index: usize, addresses: &[u64], after: &str| {
        let (count, hash) = (addresses.len(), hash(addresses));
        let (first, last) = (addresses[0], addresses[count - 1]);
        format!("piece {index} count={count} hash={hash:#x} first={first} last={last} after={after}\n")
    };
    let pieces = match gap {
        0 => piece(0, &addresses, "start"),
        _ => piece(0, first, "start") + &piece(1, last, after),
    };
    let (count, hash, loss) = (there.len(), hash(&there), u64::from(gap > 0));
    let stat = format!("stat count={count} hash={hash:#x} bytes=1 pmis=0 loss={loss}\n");
    let run = run(name, &format!("session 1\n{pieces}{stat}{words}\nok"));
    (run, truth(addresses.iter().map(|&address| record(1, address))))
}

/// Returns a guest that has recorded the first or the last `recorded` branches of `all`, each from one instruction to
/// the next.
pub(crate) fn recorded(name: &str, all: u64, recorded: u64, after: &str, words: &str) -> (Run, Truth) {
    let addresses: Vec<u64> = (0..=all).map(|n| 0x1000 + n).collect();
    let branches: Vec<u64> = addresses.windows(2).flatten().copied().collect();
    let branches = match after {
        "wrap" => &branches[2 * (all - recorded) as usize..],
        _ => &branches[..2 * recorded as usize],
    };
    let (hash_of_all, last) = (hash(&addresses), 0x1000 + all);
    let text = format!(
        "session 1
        records 0 count={recorded} hash={:#x} after={after}
        piece 0 count={count} hash={hash_of_all:#x} first=0x1000 last={last} after=start
        stat count={count} hash={hash_of_all:#x} bytes=1 pmis=0 loss={}
        {words}
        ok",
        hash(branches),
        u64::from(recorded < all),
        count = all + 1,
    );
    let branch = |from| Branch { from, to: from + 1, kind: BranchKind::Jump, from_cpl: 0, to_cpl: 0 };
    let records = addresses.iter().map(|&address| record(1, address));
    let branches = addresses[..all as usize].iter().map(|&from| Record::of_branch(branch(from), 1, 0));
    (run(name, &text), truth(records.chain(branches)))
}

/// Returns a session that took this number of samples at each of these addresses.
pub(crate) fn samples_at(addresses: &[(u64, u64)]) -> SampledSession {
    let taken = addresses.iter().map(|(_, count)| count).sum();
    let totals = Samples { taken, ..Samples::default() };
    SampledSession { totals, addresses: addresses.iter().copied().collect(), ..SampledSession::default() }
}
