//! Intel Processor Trace: compares the decoded packets with the instructions that really ran.

use anyhow::{Result, bail, ensure};
use pugmark_protocol::{After, Piece};
use std::fmt;

use super::pieces::place;
use super::{Conditions, Evidence, Judge, ended_well, enough};
use crate::report::Run;
use crate::symbols::Symbols;
use crate::truth::{Truth, hash};
use crate::workloads::Loss;

/// A decode that agrees with the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtVerdict {
    /// Instructions that retired under the filter while tracing was on.
    pub truth_count: u64,
    /// The hash of these instructions.
    pub truth_hash: u64,
    /// Instructions in the decode.
    pub decoded: u64,
    /// The longest gap, in instructions; 0 if nothing was lost.
    pub longest_gap: u64,
}

impl fmt::Display for PtVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "count={} hash={:#018x} ", self.truth_count, self.truth_hash)?;
        if self.decoded == self.truth_count {
            write!(f, "equal")
        } else {
            write!(f, "decoded={} longest_gap={} in order", self.decoded, self.longest_gap)
        }
    }
}

impl Judge for PtVerdict {
    const WORD: &'static str = "pt";
    const TITLE: &'static str = "Intel Processor Trace";

    /// Checks that the decode agrees with the truth, that no gap exceeds the workload's limit, and that enough was
    /// decoded.
    fn judge(evidence: &Evidence<'_>, conditions: &Conditions<'_>) -> Result<Self> {
        let verdict = compare(evidence.run, evidence.truth, evidence.symbols)?;
        let bound = longest_gap(conditions.loss);
        ensure!(verdict.longest_gap <= bound, "a gap of {} instructions, over {bound}", verdict.longest_gap);
        enough("instructions", verdict.decoded, verdict.truth_count, least(conditions.loss))?;
        Ok(verdict)
    }
}

/// Returns the maximum number of instructions in one gap.
const fn longest_gap(loss: Loss) -> u64 {
    match loss {
        Loss::Nothing => 0,
        // Each half of `stop` is about 16 500 instructions with interrupts off. Broadwell's tables have one region and
        // the interrupt provides the next one, so only 4 KiB of trace are kept, 4000 to 5300 instructions: more bits
        // for each if the linker has put a call target 64 KiB away, because fewer bytes of its address are compressed
        // away then. So 11 200 to 12 500 are missing. If a table has both regions, 8 KiB are kept and 6700 instructions
        // are missing.
        Loss::Stop => 13_500,
        Loss::Wrap => 20_000,
        Loss::Overflow => 2_000,
    }
}

/// Returns the minimum share of the instructions that must be decoded, in percent.
const fn least(loss: Loss) -> u64 {
    match loss {
        Loss::Nothing => 100,
        Loss::Stop => 33,
        Loss::Wrap => 25,
        Loss::Overflow => 50,
    }
}

/// Compares one workload's decode with the monitor's log.
///
/// Without a loss, count and hash must be equal. With a loss, each piece must be a run of the truth, the pieces in
/// order, and each gap must follow a loss that the guest counted.
///
/// # Errors
/// Returns the first difference.
pub fn compare(run: &Run, truth: &Truth, symbols: &Symbols) -> Result<PtVerdict> {
    ended_well(run)?;
    let (Some(session), Some(stat)) = (run.session, run.stat) else { bail!("no session, or no stat line") };
    // While a trace is paused, a running counter keeps the log on.
    let traced = truth.session(session).iter().filter(|record| record.flags.is_traced());
    let traced = run.filter.traced(traced, symbols)?;
    let truth_count = traced.len() as u64;
    let truth_hash = hash(&traced);
    ensure!(truth_count > 0, "the truth is empty: nothing was traced");
    ensure!(run.pieces.iter().map(|piece| piece.count).sum::<u64>() == stat.count, "pieces do not add up");
    if stat.loss == 0 {
        ensure!(
            (stat.count, stat.hash) == (truth_count, truth_hash),
            "decoded count={} hash={:#018x}, but the truth is count={truth_count} hash={truth_hash:#018x}{}",
            stat.count,
            stat.hash,
            first_difference(&run.pieces, &traced),
        );
        return Ok(PtVerdict { truth_count, truth_hash, decoded: stat.count, longest_gap: 0 });
    }
    let longest_gap = place(&run.pieces, &traced, allowed)?.longest();
    Ok(PtVerdict { truth_count, truth_hash, decoded: stat.count, longest_gap })
}

/// Returns the number of instructions that may be missing before a piece of an Intel PT trace, by the kind of gap.
fn allowed(after: After) -> u64 {
    match after {
        After::Overflow | After::Stop | After::Wrap | After::Error | After::Psb => u64::MAX,
        After::Start | After::Full | After::Off => 0,
    }
}

/// Returns a hint for finding the bug: the first piece that is not in its place.
fn first_difference(pieces: &[Piece], traced: &[u64]) -> String {
    match place(pieces, traced, allowed) {
        Ok(missing) => format!("; the pieces are in order, the longest gap is {}", missing.longest()),
        Err(error) => format!("; {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pieces::Missing;
    use super::*;
    use crate::testing::decoded;
    use crate::workloads;
    use std::path::Path;

    fn piece(addresses: &[u64], after: After) -> Piece {
        Piece {
            count: addresses.len() as u64,
            hash: hash(addresses),
            first: addresses[0],
            last: addresses[addresses.len() - 1],
            after,
        }
    }

    #[test]
    fn a_verdict_says_what_is_missing() {
        let all = PtVerdict { truth_count: 9, truth_hash: 0x10, decoded: 9, longest_gap: 0 };
        assert_eq!(all.to_string(), "count=9 hash=0x0000000000000010 equal");
        let text = PtVerdict { decoded: 7, longest_gap: 2, ..all }.to_string();
        assert_eq!(text, "count=9 hash=0x0000000000000010 decoded=7 longest_gap=2 in order");
    }

    #[test]
    fn places_pieces_in_order() {
        let truth = [1, 2, 3, 4, 5, 3, 4, 9];
        for (pieces, expected) in [
            (vec![piece(&truth, After::Start)], Some(0)),
            (vec![piece(&[1, 2], After::Start), piece(&[3, 4, 5, 3, 4, 9], After::Psb)], Some(0)),
            (vec![piece(&[1, 2], After::Start), piece(&[3, 4, 9], After::Overflow)], Some(3)),
            (vec![piece(&[1, 2], After::Start), piece(&[3, 4], After::Overflow)], Some(4)),
            (vec![piece(&[3, 4], After::Wrap), piece(&[3, 4], After::Overflow)], Some(2)),
            (vec![piece(&[2, 3], After::Start)], None),
            (vec![piece(&[1, 2], After::Start), piece(&[4, 5], After::Start)], None),
            (vec![piece(&[4, 5], After::Wrap), piece(&[1, 2], After::Overflow)], None),
            (vec![piece(&[1, 2, 4], After::Start)], None),
        ] {
            let longest = place(&pieces, &truth, allowed).ok().map(Missing::longest);
            assert_eq!(longest, expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_gap_is_as_long_as_the_workload_may_have_it_and_leaves_enough() {
        // All instructions, those before the gap, those in it, and the guest's report before the second piece.
        for (name, all, front, gap, after, right) in [
            ("sort", 100, 50, 0, "", true),
            ("sort", 100, 50, 1, "ovf", false),
            ("stop", 30_000, 9_000, 13_500, "stop", true),
            ("stop", 30_000, 9_000, 13_501, "stop", false),
            ("stop", 30_000, 9_000, 13_500, "off", false),
            ("stop", 20_150, 4_000, 13_500, "stop", true),
            ("stop", 20_148, 4_000, 13_500, "stop", false),
            ("ring", 30_000, 1, 20_000, "wrap", true),
            ("ring", 30_000, 1, 20_001, "wrap", false),
            ("ring", 26_668, 1, 20_000, "wrap", true),
            ("ring", 26_666, 1, 20_000, "wrap", false),
            ("overflow", 30_000, 1, 2_000, "ovf", true),
            ("overflow", 30_000, 1, 2_001, "ovf", false),
            ("overflow", 4_000, 1, 2_000, "ovf", true),
            ("overflow", 3_999, 1, 2_000, "ovf", false),
        ] {
            let (run, truth) = decoded(name, all, front, gap, after, "");
            let symbols = Symbols::default();
            let evidence =
                Evidence { run: &run, truth: &truth, symbols: &symbols, image: Path::new("unread") };
            let loss = workloads::find(name).unwrap().loss;
            let conditions = Conditions { profile: "skylake", is_intel: true, loss, last_declined: false };
            let found = PtVerdict::judge(&evidence, &conditions);
            assert_eq!(found.is_ok(), right, "{name}: {gap} of {all} after {after}: {found:?}");
            let longest = found.ok().map(|verdict| verdict.longest_gap);
            assert_eq!(longest, right.then_some(gap), "{name}");
        }
    }
}
