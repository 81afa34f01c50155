//! What is to be counted and sampled.

use super::{MOST_COUNTERS, Selection};
use crate::levels::Levels;
use bitflags::bitflags;

/// What is to be counted and sampled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// What to count, each on a counter of its own.
    pub events: &'a [Selection],
    /// Where events count that do not say it themselves.
    pub levels: Levels,
    /// Bit n: PERFEVTSELn belongs to somebody else.
    pub unavailable: u64,
    /// What goes beyond events.
    pub features: Option<Features>,
}

/// The model-specific part of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// For each event, by its index.
    pub counters: [CounterFeatures; MOST_COUNTERS],
    /// Sample instruction fetches.
    pub ibs_fetch: Option<IbsFetch>,
    /// Sample ops.
    pub ibs_op: Option<IbsOp>,
}

/// How a counter counts its event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterFeatures {
    /// Above 0: count clocks with at least so many events. Up to 3, because no event has more in a clock.
    pub counter_mask: u32,
    /// Flags.
    pub flags: CounterFlags,
}

bitflags! {
    /// Flags of a counter, with libpfm3's numbers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CounterFlags: u32 {
        /// Invert the comparison with the counter mask.
        const INV = 1 << 0;
        /// Count edges.
        const EDGE = 1 << 1;
        /// Count in guests only; since family 10h.
        const GUEST = 1 << 2;
        /// Count in the host only; since family 10h.
        const HOST = 1 << 3;
    }
}

/// How the IBS fetch unit samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsFetch {
    /// The period in completed fetches: 20 bits, of which the low four are taken for zero.
    pub max_count: u32,
    /// Randomize the low bits of the period.
    pub random: bool,
}

/// How the IBS op unit samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsOp {
    /// The period in clocks or ops: 20 bits, of which the low four are taken for zero.
    pub max_count: u32,
    /// Count dispatched ops instead of clocks; since revision C of family 10h.
    pub ops: bool,
}
