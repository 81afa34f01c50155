//! Counts of the packets read.

/// Counts of the packets that a decoder has read so far, over all synchronisations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of every kind.
    pub packets: u64,
    /// PSB packets.
    pub psbs: u64,
    /// OVF packets: each stands for packets that were lost.
    pub overflows: u64,
    /// TraceStop packets.
    pub stops: u64,
}

impl Counters {
    pub(crate) const NONE: Self = Self { packets: 0, psbs: 0, overflows: 0, stops: 0 };
}
