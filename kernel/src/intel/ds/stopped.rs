//! The records of a stopped debug store.

use super::progress::Progress;
use super::{DsArea, DsLayout, DsUnit, Half, LinearMemory};
use crate::drain::Chunk;
use crate::loss::Loss;
use crate::msr::Msr;

/// A recording that was stopped.
#[derive(Debug)]
pub struct DsStopped<M: Msr, L: LinearMemory> {
    /// The unit, which can be started again.
    pub unit: DsUnit<M>,
    /// The records.
    pub records: Records<L>,
}

impl<M: Msr, L: LinearMemory> DsStopped<M, L> {
    pub(super) const fn new(unit: DsUnit<M>, area: DsArea<L>, bts: Progress, pebs: Progress) -> Self {
        Self { unit, records: Records { area, bts, pebs } }
    }
}

/// The records in an area.
#[derive(Debug)]
pub struct Records<L: LinearMemory> {
    area: DsArea<L>,
    bts: Progress,
    pebs: Progress,
}

impl<L: LinearMemory> Records<L> {
    /// Returns the complete records of a half, oldest first, and the gaps between them.
    pub fn chunks(&self, half: Half) -> impl Iterator<Item = Chunk<'_>> {
        let progress = self.progress(half);
        self.area.half(half).into_iter().flat_map(|buffer| progress.chunks(buffer))
    }

    /// Returns the losses of a half.
    #[must_use]
    pub const fn loss(&self, half: Half) -> &Loss {
        self.progress(half).loss()
    }

    /// Returns the layout, which gives the width of the records' fields.
    #[must_use]
    pub const fn layout(&self) -> DsLayout {
        self.area.layout()
    }

    /// Returns the memory, for another recording.
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
