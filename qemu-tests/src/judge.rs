//! Checks that a decode is what really ran.

use anyhow::{Result, bail, ensure};
use pugmark_protocol::{After, Piece};
use std::fmt;

use crate::report::{End, Run};
use crate::symbols::Symbols;
use crate::truth::{Truth, hash};

/// A decode that agrees with the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Instructions that retired under the filter while tracing was on.
    pub truth_count: u64,
    /// Their hash.
    pub truth_hash: u64,
    /// Instructions that the decode has.
    pub decoded: u64,
    /// The longest gap, in instructions; 0 if nothing was lost.
    pub longest_gap: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "count={} hash={:#018x} ", self.truth_count, self.truth_hash)?;
        if self.decoded == self.truth_count {
            write!(f, "equal")
        } else {
            write!(f, "decoded={} longest_gap={} in order", self.decoded, self.longest_gap)
        }
    }
}

/// Compares one workload's decode with what the monitor logged.
///
/// Without a loss, count and hash must be equal. With a loss, each piece must be a run of the truth, the pieces in
/// order, and each gap must lie after a loss that the guest counted.
///
/// # Errors
/// The first difference.
pub fn judge(run: &Run, truth: &Truth, symbols: &Symbols) -> Result<Verdict> {
    ended_well(run)?;
    let (Some(session), Some(stat)) = (run.session, run.stat) else { bail!("no session, or no stat line") };
    let traced = run.filter.traced(truth.session(session), symbols)?;
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
        return Ok(Verdict { truth_count, truth_hash, decoded: stat.count, longest_gap: 0 });
    }
    let longest_gap = place(&run.pieces, &traced, allowed)?.longest();
    Ok(Verdict { truth_count, truth_hash, decoded: stat.count, longest_gap })
}

/// Returns an error unless the guest reports that the workload passed.
pub(crate) fn ended_well(run: &Run) -> Result<()> {
    match &run.end {
        None => bail!("has not ended"),
        Some(End::Fail(reason)) => bail!("the guest says: {reason}"),
        Some(End::Broke(what)) => bail!("the kernel broke rules of the hardware: {what}"),
        Some(End::Ok) => Ok(()),
    }
}

/// How many instructions are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The largest number before a piece.
    pub(crate) before: u64,
    /// The number after the last piece.
    pub(crate) behind: u64,
}

impl Missing {
    fn longest(self) -> u64 {
        self.before.max(self.behind)
    }
}

/// How many instructions may be missing before a piece of an Intel PT trace, by what came before the piece.
fn allowed(after: After) -> u64 {
    match after {
        After::Overflow | After::Stop | After::Wrap | After::Error | After::Psb => u64::MAX,
        After::Start | After::Full | After::Off => 0,
    }
}

/// Finds each piece in the truth, in order. `allowed` returns how many instructions may be missing before a piece.
pub(crate) fn place(pieces: &[Piece], traced: &[u64], allowed: impl Fn(After) -> u64) -> Result<Missing> {
    let (mut at, mut missing) = (0, Missing::default());
    for (index, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.count > 0) {
        let length = usize::try_from(piece.count)?;
        let starts = (at..(traced.len() + 1).saturating_sub(length)).filter(|&start| {
            traced[start] == piece.first
                && traced[start + length - 1] == piece.last
                && hash(&traced[start..start + length]) == piece.hash
        });
        // A piece that fits in several places is taken to be in the first of them.
        let Some(start) = { starts }.next() else {
            bail!(
                "piece {index} ({} instructions from {:#x} after {}) is no run of the truth behind its instruction {at}",
                piece.count,
                piece.first,
                piece.after
            );
        };
        let gap = (start - at) as u64;
        ensure!(
            gap <= allowed(piece.after),
            "{gap} instructions are missing before piece {index}, and no loss is told there ({})",
            piece.after
        );
        missing.before = missing.before.max(gap);
        at = start + length;
    }
    missing.behind = (traced.len() - at) as u64;
    Ok(missing)
}

/// A hint for finding the bug: which piece is the first that is not in its place.
fn first_difference(pieces: &[Piece], traced: &[u64]) -> String {
    match place(pieces, traced, allowed) {
        Ok(missing) => format!("; the pieces are in order, the longest gap is {}", missing.longest()),
        Err(error) => format!("; {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let all = Verdict { truth_count: 9, truth_hash: 0x10, decoded: 9, longest_gap: 0 };
        assert_eq!(all.to_string(), "count=9 hash=0x0000000000000010 equal");
        let text = Verdict { decoded: 7, longest_gap: 2, ..all }.to_string();
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
}
