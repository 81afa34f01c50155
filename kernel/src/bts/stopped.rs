//! What was recorded.

use super::Unit;
use crate::drain::Piece;
use crate::ds::{BufferMode, DsArea, DsLayout, LinearMemory};
use crate::loss::{Gap, Loss};
use crate::msr::Msr;

/// A recording that is over.
#[derive(Debug)]
pub struct Stopped<M: Msr, L: LinearMemory> {
    /// The unit, to start again.
    pub unit: Unit<M>,
    /// What was recorded.
    pub records: Records<L>,
    /// What was lost.
    pub loss: Loss,
}

impl<M: Msr, L: LinearMemory> Stopped<M, L> {
    pub(super) const fn new(
        unit: Unit<M>,
        area: DsArea<L>,
        loss: Loss,
        filled: u64,
        cut: Option<Gap>,
    ) -> Self {
        Self { unit, records: Records { area, filled, cut }, loss }
    }
}

/// The records that are in an area.
#[derive(Debug)]
pub struct Records<L: LinearMemory> {
    area: DsArea<L>,
    filled: u64,
    cut: Option<Gap>,
}

impl<L: LinearMemory> Records<L> {
    /// Whole records, oldest first, and where some are missing.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        pieces(&self.area, self.filled, self.cut)
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
}

/// What an area holds. The processor does not record.
pub(super) fn pieces<L: LinearMemory>(
    area: &DsArea<L>,
    filled: u64,
    cut: Option<Gap>,
) -> impl Iterator<Item = Piece<'_>> {
    let round = area.mode() == BufferMode::Circular && area.went_round();
    let wrap = round.then_some(Piece::Gap(Gap::Wrap { bytes: 0 }));
    let older = round.then(|| Piece::Bytes(area.records(filled, area.end())));
    let newer = Some(Piece::Bytes(area.records(0, filled)));
    let some = |piece: &Piece<'_>| !matches!(piece, Piece::Bytes([]));
    [wrap, older, newer, cut.map(Piece::Gap)].into_iter().flatten().filter(some)
}
