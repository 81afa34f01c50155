//! What was recorded.

use super::progress::Progress;
use super::{DsArea, DsLayout, DsUnit, Half, LinearMemory};
use crate::drain::Piece;
use crate::loss::Loss;
use crate::msr::Msr;

/// A recording that is over.
#[derive(Debug)]
pub struct DsStopped<M: Msr, L: LinearMemory> {
    /// The unit, to start again.
    pub unit: DsUnit<M>,
    /// What was recorded.
    pub records: Records<L>,
}

impl<M: Msr, L: LinearMemory> DsStopped<M, L> {
    pub(super) const fn new(unit: DsUnit<M>, area: DsArea<L>, bts: Progress, pebs: Progress) -> Self {
        Self { unit, records: Records { area, bts, pebs } }
    }
}

/// The records that are in an area.
#[derive(Debug)]
pub struct Records<L: LinearMemory> {
    area: DsArea<L>,
    bts: Progress,
    pebs: Progress,
}

impl<L: LinearMemory> Records<L> {
    /// Whole records of a half, oldest first, and where some are missing.
    pub fn pieces(&self, half: Half) -> impl Iterator<Item = Piece<'_>> {
        let progress = self.progress(half);
        self.area.half(half).into_iter().flat_map(|buffer| progress.pieces(buffer))
    }

    /// What of a half was lost.
    #[must_use]
    pub const fn loss(&self, half: Half) -> &Loss {
        self.progress(half).loss()
    }

    /// How wide their fields are.
    #[must_use]
    pub const fn layout(&self) -> DsLayout {
        self.area.layout()
    }

    /// The memory, for another recording.
    #[must_use]
    pub fn into_area(self) -> DsArea<L> {
        self.area
    }

    const fn progress(&self, half: Half) -> &Progress {
        match half {
            Half::Bts => &self.bts,
            Half::Pebs => &self.pebs,
        }
    }
}
