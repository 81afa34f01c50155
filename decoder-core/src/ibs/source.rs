//! The source of the data of a load.

use super::{Caps, Part};

/// The source of the data of a load that missed L1 and L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataSource {
    /// The L3 of this core's complex; on newer processors also the L1 or L2 of another core there.
    LocalL3,
    /// A cache in this node: that of another core on family 10h, of another core complex on Zen.
    NodeCache,
    /// Memory.
    Dram,
    /// A cache in another node.
    RemoteCache,
    /// Memory with a long latency: a persistent DIMM.
    LongLatencyDimm,
    /// MMIO, configuration space, PCI or the local APIC.
    Io,
    /// Extension memory, such as CXL.
    ExtensionMemory,
    /// Coherent memory of a processor of another type.
    PeerMemory,
    /// An encoding that the manual of this processor does not define.
    Reserved(u8),
}

impl DataSource {
    /// Reads the source from IbsOpData2; `None` if the register has no valid status.
    pub(super) const fn of(part: &Part, data2: u64) -> Option<Self> {
        let low = (data2 & 7) as u8;
        if part.caps.has(Caps::ZEN4) {
            return Self::zen4(low + (data2 >> 6 & 3) as u8 * 8);
        }
        match (low, part.is_zen()) {
            (0, _) => None,
            (1, false) => Some(Self::LocalL3),
            (2, _) => Some(Self::NodeCache),
            (3, _) => Some(Self::Dram),
            (4, true) => Some(Self::RemoteCache),
            (7, _) => Some(Self::Io),
            (n, _) => Some(Self::Reserved(n)),
        }
    }

    const fn zen4(encoding: u8) -> Option<Self> {
        match encoding {
            0 => None,
            1 => Some(Self::LocalL3),
            2 => Some(Self::NodeCache),
            3 => Some(Self::Dram),
            5 => Some(Self::RemoteCache),
            6 => Some(Self::LongLatencyDimm),
            7 => Some(Self::Io),
            8 => Some(Self::ExtensionMemory),
            12 => Some(Self::PeerMemory),
            n => Some(Self::Reserved(n)),
        }
    }

    /// Returns true if CacheHitSt is valid for this source.
    pub(super) const fn has_state(self, part: &Part) -> bool {
        match self {
            Self::NodeCache => part.has_cache_state(),
            Self::LocalL3 | Self::RemoteCache => part.caps.has(Caps::ZEN4),
            _ => false,
        }
    }
}

/// The state of a line in the cache that supplied it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheState {
    /// Modified.
    Modified,
    /// Owned.
    Owned,
}
