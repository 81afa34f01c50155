//! QEMU's own execution log, the witness against which the monitor's truth is held.
//!
//! QEMU writes a line for each block that it enters; told to put one instruction into a block, that is a
//! line for each instruction it begins. Two things stand in that log that did not retire: each iteration of
//! a REP instruction but the last, and an instruction that faulted. [`compare`] knows both and counts them.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;

use crate::machine::open;
use crate::truth::Record;

/// The bit of QEMU's translation flags that marks code of an SVM guest.
const SVM_GUEST: u64 = 1 << 21;

/// QEMU's arguments for a log of the instructions in `ranges`.
#[must_use]
pub fn arguments(log: &Path, ranges: &[Range<u64>]) -> Vec<String> {
    let range = |range: &Range<u64>| format!("{:#x}..{:#x}", range.start, range.end - 1);
    let filter = ranges.iter().map(range).collect::<Vec<_>>().join(",");
    let file = log.to_string_lossy().into_owned();
    ["-singlestep", "-d", "exec,nochain", "-D", &file, "-dfilter", &filter].map(String::from).to_vec()
}

/// The addresses of the SVM guest's instructions that `processor` began, by a log, in order.
///
/// # Errors
/// A file that cannot be read or a line that is not of the known form.
pub fn read(log: &Path, processor: u16) -> Result<Vec<u64>> {
    let mut addresses = Vec::new();
    for line in BufReader::new(open(log)?).lines() {
        let line = line?;
        if line.starts_with("Trace ") {
            let entry = trace_line(&line).with_context(|| format!("unknown form: {line:?}"))?;
            if entry.processor == processor && entry.flags & SVM_GUEST != 0 {
                addresses.push(entry.address);
            }
        }
    }
    Ok(addresses)
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    processor: u16,
    address: u64,
    flags: u64,
}

/// Reads `Trace processor: 0x… [cs_base/pc/flags/cflags] …`.
fn trace_line(line: &str) -> Option<Entry> {
    let (processor, rest) = line.strip_prefix("Trace ")?.split_once(':')?;
    let (_, fields) = rest.split_once('[')?;
    let mut fields = fields.split_once(']')?.0.split('/');
    let mut hex = || u64::from_str_radix(fields.next()?, 16).ok();
    let (_cs_base, address, flags) = (hex()?, hex()?, hex()?);
    Some(Entry { processor: processor.parse().ok()?, address, flags })
}

/// How the two accounts agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Instructions in both.
    pub equal: u64,
    /// Log entries that repeat the one before: REP iterations.
    pub repeated: u64,
    /// Log entries of instructions that began and did not retire there: they faulted, or were interrupted
    /// between two iterations.
    pub unfinished: u64,
    /// Instructions that the monitor executed by hand, which QEMU cannot know of.
    pub by_hand: u64,
    /// Log entries between the WRMSR that switches tracing off and the one that switches it on, both included.
    pub untraced: u64,
}

/// Holds a session's truth against the log, in which it must stand as one stretch; it may have gaps, but only
/// from one WRMSR to another. `wrmsr` is the address of the one instruction that the guest has for that.
///
/// # Errors
/// The first place where they differ.
pub fn compare(log: &[u64], truth: &[Record], wrmsr: u64) -> Result<Agreement> {
    let in_log = |record: &&Record| !record.flags.is_by_hand();
    let expected: Vec<u64> = truth.iter().filter(in_log).map(|record| record.rip).collect();
    let by_hand = (truth.len() - expected.len()) as u64;
    Ok(Agreement { by_hand, ..find(log, &expected, wrmsr)? })
}

/// Finds the stretch of the log that has these instructions.
fn find(log: &[u64], expected: &[u64], wrmsr: u64) -> Result<Agreement> {
    let Some(first) = expected.first() else { bail!("the truth is empty") };
    let mut best: Option<(usize, anyhow::Error)> = None;
    for start in (0..log.len()).filter(|&index| log[index] == *first) {
        match find_at(log, start, expected, wrmsr) {
            Ok(agreement) => return Ok(agreement),
            Err((reached, error)) => {
                if best.as_ref().is_none_or(|(farthest, _)| reached > *farthest) {
                    best = Some((reached, error));
                }
            }
        }
    }
    Err(best.map_or_else(|| anyhow::anyhow!("{first:#x} is not in the log"), |(_, error)| error))
}

fn find_at(
    log: &[u64],
    start: usize,
    expected: &[u64],
    wrmsr: u64,
) -> Result<Agreement, (usize, anyhow::Error)> {
    let mut agreement = Agreement::default();
    let mut at = start;
    for (index, address) in expected.iter().enumerate() {
        while log.get(at) != Some(address) {
            let Some(&entry) = log.get(at) else {
                return Err((index, anyhow::anyhow!("the log ends before instruction {index} of the truth")));
            };
            let run = log[at..].iter().take_while(|&&next| next == entry).count();
            if let Some(on) = switched_on(&log[at..], &expected[index..], wrmsr) {
                agreement.untraced += on as u64;
                at += on;
                continue;
            }
            if at > start && log[at - 1] == entry {
                agreement.repeated += run as u64;
            } else if log.get(at + run) == Some(address) {
                agreement.unfinished += run as u64;
            } else {
                let error = anyhow::anyhow!(
                    "instruction {index} is {address:#x} in the truth and {entry:#x} in the log (entry {at})"
                );
                return Err((index, error));
            }
            at += run;
        }
        agreement.equal += 1;
        at += 1;
    }
    Ok(agreement)
}

/// If the log begins with the WRMSR that switches tracing off: how far it is to what is behind the one that
/// switches it on, which is where the truth goes on.
fn switched_on(log: &[u64], expected: &[u64], wrmsr: u64) -> Option<usize> {
    /// Enough to tell one WRMSR, which is always followed by the same instructions, from another by its caller.
    const ENOUGH: usize = 16;
    let ahead = &expected[..expected.len().min(ENOUGH)];
    let behind = |at: &usize| log[*at - 1] == wrmsr && log[*at..].starts_with(ahead);
    (log.first() == Some(&wrmsr)).then(|| (1..log.len()).find(behind)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truth::Flags;

    const WRMSR: u64 = 77;

    fn records(addresses: &[u64]) -> Vec<Record> {
        let record = |&rip: &u64| Record { rip, cr3: 0, session: 1, flags: Flags::new(0), cpu: 0 };
        addresses.iter().map(record).collect()
    }

    #[test]
    fn knows_what_did_not_retire() {
        for (log, truth, expected) in [
            (&[7, 1, 2, 3, 8][..], &[1, 2, 3][..], Some((3, 0, 0))),
            (&[1, 2, 2, 2, 3], &[1, 2, 3], Some((3, 2, 0))),
            (&[1, 2, 9, 2, 3], &[1, 9, 2, 3], Some((4, 0, 1))),
            (&[1, 2, 2, 9, 2, 2, 3], &[1, 9, 2, 3], Some((4, 1, 2))),
            (&[1, 9, 1, 2, 3], &[1, 2, 3], Some((3, 0, 0))),
            (&[1, 2, 4, 3], &[1, 2, 3], Some((3, 0, 1))),
            (&[1, 2, 4, 5, 3], &[1, 2, 3], None),
            (&[1, 3], &[1, 2, 3], None),
            (&[1, 2], &[1, 2, 3], None),
            (&[1, 2], &[], None),
        ] {
            let agreement = compare(log, &records(truth), WRMSR).ok();
            let counts = agreement.map(|found| (found.equal, found.repeated, found.unfinished));
            assert_eq!(counts, expected, "{log:?} {truth:?}");
        }
    }

    #[test]
    fn a_truth_that_was_tampered_with_is_another_one() {
        let log: Vec<u64> = (1000..2000).collect();
        let unfinished =
            |truth: &[u64]| compare(&log, &records(truth), WRMSR).ok().map(|found| found.unfinished);
        let changed = |change: &dyn Fn(&mut Vec<u64>)| {
            let mut truth = log.clone();
            change(&mut truth);
            unfinished(&truth)
        };
        assert_eq!(unfinished(&log), Some(0));
        assert_eq!(changed(&|truth| truth.retain(|address| address % 2 == 0)), Some(499));
        assert_eq!(changed(&|truth| _ = truth.remove(500)), Some(1));
        assert_eq!(changed(&|truth| truth.insert(500, truth[500])), None);
        assert_eq!(changed(&|truth| truth.swap(500, 501)), None);
    }

    #[test]
    fn a_gap_goes_from_one_wrmsr_to_another() {
        for (log, expected) in [
            (&[1, 2, 77, 8, 9, 77, 3, 4][..], Some(4)),
            (&[1, 2, 77, 8, 77, 9, 77, 3, 4], Some(5)),
            (&[1, 2, 77, 3, 8, 77, 3, 4], Some(4)),
            (&[1, 2, 8, 9, 77, 3, 4], None),
            (&[1, 2, 77, 8, 9, 3, 4], None),
            (&[1, 2, 77, 8, 77, 3, 5], None),
        ] {
            let agreement = compare(log, &records(&[1, 2, 3, 4]), WRMSR).ok();
            assert_eq!(agreement.map(|found| found.untraced), expected, "{log:?}");
        }
    }

    #[test]
    fn qemu_does_not_know_what_was_done_by_hand() {
        let mut truth = records(&[1, 2, 3]);
        truth[1].flags = truth[1].flags.by_hand();
        let agreement = compare(&[1, 3], &truth, WRMSR).unwrap();
        assert_eq!(agreement, Agreement { equal: 2, by_hand: 1, ..Agreement::default() });
    }

    #[test]
    fn reads_the_form_that_qemu_writes() {
        let line = "Trace 3: 0x7f5b3c000100 [0000000000000000/0000000000101234/00a0c0b3/ff000201] main";
        let entry = Entry { processor: 3, address: 0x10_1234, flags: 0x00a0_c0b3 };
        assert_eq!(trace_line(line), Some(entry));
        assert_eq!(trace_line("Trace 0: 0x7f5b3c000100"), None);
    }
}
