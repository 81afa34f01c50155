//! A request to count and sample.

use super::{find::Selection, output::MAX_COUNTERS};
use crate::levels::Levels;
use bitflags::bitflags;

/// A request to count and sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The events to count, each on a separate counter.
    pub events: &'a [Selection],
    /// The levels for events without levels.
    pub levels: Levels,
    /// Bit n is set if PERFEVTSELn is in use by others.
    pub unavailable: u64,
    /// Settings beyond events and levels.
    pub features: Option<Features>,
}

/// The model-specific part of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The settings of each event's counter, by the event's index.
    pub counters: [CounterFeatures; MAX_COUNTERS],
    /// Sample instruction fetches.
    pub ibs_fetch: Option<IbsFetch>,
    /// Sample ops.
    pub ibs_op: Option<IbsOp>,
}

/// The settings of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterFeatures {
    /// If above 0, count the clocks with at least this number of events. At most 3, because no event occurs more often
    /// in a clock.
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
        /// Count only in guests; since family 10h.
        const GUEST = 1 << 2;
        /// Count only in the host; since family 10h.
        const HOST = 1 << 3;
    }
}

/// The settings of the IBS fetch unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsFetch {
    /// The period in completed fetches: 20 bits, of which the low four are treated as zero.
    pub max_count: u32,
    /// True to randomize the low bits of the period.
    pub random: bool,
}

/// The settings of the IBS op unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsOp {
    /// The period in clocks or ops: 20 bits, of which the low four are treated as zero.
    pub max_count: u32,
    /// True to count dispatched ops instead of clocks; since revision C of family 10h.
    pub ops: bool,
}
