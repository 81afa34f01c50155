//! Finds the pieces of a decode in the truth.

use anyhow::{Result, bail, ensure};
use pugmark_protocol::{After, Piece};

use crate::truth::hash;

/// The number of missing instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Maximum number before a piece.
    pub(super) before: u64,
    /// Number after the last piece.
    pub(super) at_end: u64,
}

impl Missing {
    /// Returns the maximum number in one place.
    pub(super) fn longest(self) -> u64 {
        self.before.max(self.at_end)
    }
}

/// Finds each piece in the truth, in order. `allowed` returns the number of instructions that may be missing before it.
///
/// # Errors
/// If a piece is not in the truth after the previous piece, or too many instructions are missing before it.
pub(super) fn place(pieces: &[Piece], traced: &[u64], allowed: impl Fn(After) -> u64) -> Result<Missing> {
    let (mut at, mut missing) = (0, Missing::default());
    for (index, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.count > 0) {
        let length = usize::try_from(piece.count)?;
        let starts = (at..(traced.len() + 1).saturating_sub(length)).filter(|&start| {
            traced[start] == piece.first
                && traced[start + length - 1] == piece.last
                && hash(&traced[start..start + length]) == piece.hash
        });
        // A piece that matches several places is taken to be in the first of them.
        let Some(start) = { starts }.next() else {
            bail!(
                "piece {index} ({} instructions from {:#x} after {}) is not in the truth after instruction {at}",
                piece.count,
                piece.first,
                piece.after
            );
        };
        let gap = (start - at) as u64;
        ensure!(
            gap <= allowed(piece.after),
            "{gap} instructions are missing before piece {index}, and the guest reports no loss there ({})",
            piece.after
        );
        missing.before = missing.before.max(gap);
        at = start + length;
    }
    missing.at_end = (traced.len() - at) as u64;
    Ok(missing)
}
