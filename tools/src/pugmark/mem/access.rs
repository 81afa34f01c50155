//! A sampled memory access, from IBS or as Linux reports it for any processor.
//!
//! Source: Linux, include/uapi/linux/perf_event.h, `union perf_mem_data_src`.

use pugmark_decoder_core::ibs::{Access, CacheState, DataSource, Dtlb};
use serde::Serialize;
use std::fmt;

/// The level of the memory hierarchy that the data came from or that a store went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Level {
    L1,
    /// An in-flight line, on its way to the cache.
    LineBuffer,
    L2,
    L3,
    L4,
    /// A cache of another core or core complex in this node.
    NodeCache,
    RemoteCache,
    Memory,
    RemoteMemory,
    Persistent,
    /// Memory on an extension bus, such as CXL.
    Extension,
    Io,
    Uncached,
    AnyCache,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::L1 => "L1",
            Self::LineBuffer => "line buffer",
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::L4 => "L4",
            Self::NodeCache => "other core's cache",
            Self::RemoteCache => "remote cache",
            Self::Memory => "memory",
            Self::RemoteMemory => "remote memory",
            Self::Persistent => "persistent memory",
            Self::Extension => "extension memory",
            Self::Io => "I/O",
            Self::Uncached => "uncached",
            Self::AnyCache => "a cache",
        }
    }
}

/// The place where the data was, as far as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct AccessSource {
    /// The level.
    pub(super) level: Option<Level>,
    /// True if the access missed at this level.
    pub(super) missed: bool,
    /// True if another cache had the line, and had modified it.
    pub(super) modified: bool,
}

impl fmt::Display for AccessSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.level.map_or("unknown", Level::name))?;
        f.write_str(if self.missed { " miss" } else { "" })?;
        f.write_str(if self.modified { ", modified" } else { "" })
    }
}

/// The translation of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Translation {
    L1,
    L2,
    /// A hit in one of the TLB's levels.
    Hit,
    /// A page walk.
    Walk,
}

impl Translation {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::L1 => "L1 TLB",
            Self::L2 => "L2 TLB",
            Self::Hit => "a TLB",
            Self::Walk => "page walk",
        }
    }
}

/// The kinds of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Operation {
    pub(super) load: bool,
    pub(super) store: bool,
    pub(super) prefetch: bool,
}

impl Operation {
    pub(super) const fn name(self) -> &'static str {
        match (self.load, self.store, self.prefetch) {
            (_, _, true) => "prefetch",
            (true, true, _) => "load+store",
            (true, false, _) => "load",
            (false, true, _) => "store",
            (false, false, _) => "other",
        }
    }
}

/// A memory access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryAccess {
    pub(super) operation: Operation,
    pub(super) locked: bool,
    pub(super) source: AccessSource,
    pub(super) translation: Option<Translation>,
    /// The linear address.
    pub(super) address: Option<u64>,
    /// The number of bytes accessed, if known.
    pub(super) bytes: Option<u32>,
    /// The latency in cycles.
    pub(super) latency: Option<u64>,
}

/// Returns a field of `union perf_mem_data_src`, given its lowest bit and its number of bits.
const fn field(value: u64, at: u32, bits: u32) -> u64 {
    value >> at & ((1 << bits) - 1)
}

/// The bits of `mem_lvl` that name a level. The level nearest to the memory is the last.
const LEVELS: [(u64, Level); 11] = [
    (0x8, Level::L1),
    (0x10, Level::LineBuffer),
    (0x20, Level::L2),
    // AMD's processors before Zen 4 do not distinguish the caches of other cores from the L3.
    (0x400, Level::RemoteCache),
    (0x800, Level::RemoteCache),
    (0x40, Level::L3),
    (0x80, Level::Memory),
    (0x100, Level::RemoteMemory),
    (0x200, Level::RemoteMemory),
    (0x1000, Level::Io),
    (0x2000, Level::Uncached),
];

impl MemoryAccess {
    /// Returns the access that Linux reports in `PERF_SAMPLE_DATA_SRC`, `ADDR` and `WEIGHT`; `None` if the sample is no
    /// access.
    pub(super) fn of_linux(data_src: u64, address: Option<u64>, weight: Option<u64>) -> Option<Self> {
        let of = |at, bits| field(data_src, at, bits);
        let operation = of(0, 5);
        let operation =
            Operation { load: operation & 2 != 0, store: operation & 4 != 0, prefetch: operation & 8 != 0 };
        if operation == Operation::default() {
            return None;
        }
        let (level, number, remote) = (of(5, 14), of(33, 4), of(37, 1) != 0);
        // Two bits are set if the processor does not distinguish the two levels.
        let by_bits =
            LEVELS.into_iter().filter(|(bit, _)| level & bit != 0).map(|(_, level)| level).next_back();
        let by_number = match (number, remote) {
            (1, false) => Some(Level::L1),
            (2, false) => Some(Level::L2),
            (3, false) => Some(Level::L3),
            (4, false) => Some(Level::L4),
            // `mem_hops`: another core of the same node.
            (1..=4 | 0xb, true) if of(43, 3) == 1 => Some(Level::NodeCache),
            (1..=4 | 0xb, true) => Some(Level::RemoteCache),
            (8, _) => Some(Level::Uncached),
            (9, _) => Some(Level::Extension),
            (0xa, _) => Some(Level::Io),
            (0xb, false) => Some(Level::AnyCache),
            (0xc, _) => Some(Level::LineBuffer),
            (0xd, false) => Some(Level::Memory),
            (0xd, true) => Some(Level::RemoteMemory),
            (0xe, _) => Some(Level::Persistent),
            _ => None,
        };
        let (hit, missed) = (level & 2 != 0, level & 4 != 0);
        let tlb = of(26, 7);
        let translation = match (tlb & 2 != 0, tlb & 4 != 0, tlb & 8 != 0, tlb & 0x10 != 0) {
            // For a page walk that IBS reports, Linux sets only the miss of the last level.
            (false, true, ..) => Some(Translation::Walk),
            _ if tlb & 0x60 != 0 && tlb & 0x18 == 0 => Some(Translation::Walk),
            (true, _, true, false) => Some(Translation::L1),
            (true, _, false, true) => Some(Translation::L2),
            (true, ..) => Some(Translation::Hit),
            _ => None,
        };
        Some(Self {
            operation,
            locked: of(24, 2) & 2 != 0,
            source: AccessSource {
                level: by_bits.or(by_number),
                missed: missed && !hit,
                modified: of(19, 5) & 0x10 != 0,
            },
            translation,
            address: address.filter(|address| *address != 0),
            bytes: None,
            latency: weight.filter(|weight| *weight != 0),
        })
    }

    /// Returns the access that IBS reports about an op.
    pub(super) fn of_ibs(access: Access<'_>) -> Self {
        let (load, store) = (access.is_load(), access.is_store());
        let prefetch = access.software_prefetch() == Some(true);
        let remote = access.remote_node() == Some(true);
        let level = match (access.source(), access.dc_miss(), access.l2_miss()) {
            (Some(source), ..) => level(source, remote),
            // Uncacheable accesses have no miss.
            (None, None, _) => access.uncacheable().then_some(Level::Uncached),
            (None, Some(false), _) => Some(Level::L1),
            (None, Some(true), Some(false)) => Some(Level::L2),
            // IBS reports the data source for loads only.
            (None, Some(true), _) => {
                let requested = access.miss_without_mab() == Some(true) || access.mab_hit() == Some(true);
                requested.then_some(Level::LineBuffer)
            }
        };
        let modified = access.cache_state() == Some(CacheState::Modified);
        let translation = access.dtlb().map(|dtlb| match dtlb {
            Dtlb::L1 => Translation::L1,
            Dtlb::L2 => Translation::L2,
            Dtlb::Miss => Translation::Walk,
        });
        Self {
            operation: Operation { load, store, prefetch },
            locked: access.locked(),
            source: AccessSource { level, missed: false, modified },
            translation,
            address: access.linear_address(),
            bytes: access.bytes(),
            latency: access.miss_latency().map(u64::from).filter(|latency| *latency != 0),
        }
    }
}

/// Returns the level of a data source of IBS.
const fn level(source: DataSource, remote: bool) -> Option<Level> {
    Some(match source {
        DataSource::LocalL3 => Level::L3,
        DataSource::NodeCache => Level::NodeCache,
        DataSource::Dram if remote => Level::RemoteMemory,
        DataSource::Dram => Level::Memory,
        DataSource::RemoteCache => Level::RemoteCache,
        DataSource::LongLatencyDimm => Level::Persistent,
        DataSource::Io => Level::Io,
        DataSource::ExtensionMemory => Level::Extension,
        DataSource::PeerMemory => Level::Extension,
        DataSource::Reserved(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::ibs::{Caps, OpRegisters, OpSample, Part};

    /// Returns the access in registers of a Zen 4 with these bits in IbsOpData2 and IbsOpData3.
    fn of_ibs(data2: u64, data3: u64) -> MemoryAccess {
        // Op IBS, with the data sources of Zen 4.
        let part = Part { family: 0x19, model: 0x11, caps: Caps(0xbff) };
        let registers =
            OpRegisters { ctl: 1 << 18, data2, data3, dc_linear: 0x7008, ..OpRegisters::default() };
        MemoryAccess::of_ibs(OpSample::new(part, registers).unwrap().access().unwrap())
    }

    #[test]
    fn each_source_of_ibs_is_a_level() {
        const LOAD: u64 = 1;
        const STORE: u64 = 2;
        const MISS: u64 = 1 << 7;
        const L2_MISS: u64 = 1 << 20;
        let far = LOAD | MISS | L2_MISS;
        for (data2, data3, expected) in [
            (0, LOAD, "load L1"),
            (0, STORE, "store L1"),
            (0, LOAD | STORE, "load+store L1"),
            (0, LOAD | 1 << 21, "prefetch L1"),
            (0, LOAD | MISS, "load L2"),
            (0, STORE | MISS, "store L2"),
            (1, far, "load L3, modified"),
            (1 | 1 << 5, far, "load L3"),
            (2, far, "load other core's cache, modified"),
            (3, far, "load memory"),
            (3 | 1 << 4, far, "load remote memory"),
            (5 | 1 << 5, far, "load remote cache"),
            (6, far, "load persistent memory"),
            (1 << 6, far, "load extension memory"),
            (1 << 6 | 4, far, "load extension memory"),
            (1 << 6 | 5, far, "load unknown"),
            (0, far, "load unknown"),
            (0, far | 1 << 16, "load line buffer"),
            // The data source is of loads only.
            (3, STORE | MISS | L2_MISS, "store unknown"),
            (0, LOAD | 1 << 14, "load uncached"),
            (7, LOAD | 1 << 14, "load I/O"),
        ] {
            let access = of_ibs(data2, data3);
            let found = format!("{} {}", access.operation.name(), access.source);
            assert_eq!(found, expected, "{data2:#x} {data3:#x}");
        }
    }

    #[test]
    fn the_rest_of_an_access_of_ibs_is_as_far_as_it_is_valid() {
        const VALID: u64 = 1 << 17;
        let load = MemoryAccess {
            operation: Operation { load: true, ..Operation::default() },
            source: AccessSource { level: Some(Level::L1), ..AccessSource::default() },
            ..MemoryAccess::default()
        };
        assert_eq!(of_ibs(0, 1), load);
        let address = MemoryAccess { address: Some(0x7008), translation: Some(Translation::L1), ..load };
        assert_eq!(of_ibs(0, 1 | VALID), address);
        let walked = Some(Translation::Walk);
        assert_eq!(of_ibs(0, 1 | VALID | 0b1100).translation, walked);
        assert_eq!(of_ibs(0, 1 | VALID | 0b0100).translation, Some(Translation::L2));
        assert_eq!(of_ibs(0, 1 | 1 << 15 | 4 << 22), MemoryAccess { locked: true, bytes: Some(8), ..load });
        // Only misses have a latency, and 0 means an unknown latency.
        assert_eq!(of_ibs(0, 1 | 77 << 32).latency, None);
        assert_eq!(of_ibs(0, 1 | 1 << 7 | 77 << 32).latency, Some(77));
        assert_eq!(of_ibs(0, 1 | 1 << 7).latency, None);
    }

    #[test]
    fn linux_tells_intels_tlb_by_more_than_one_level() {
        // Hit in the L1 or the L2, miss in both, a walk, nothing.
        for (tlb, expected) in [
            (0x1a, Some(Translation::Hit)),
            (0x0a, Some(Translation::L1)),
            (0x14, Some(Translation::Walk)),
            (0x22, Some(Translation::Walk)),
            (0x01, None),
        ] {
            let access = MemoryAccess::of_linux(2 | tlb << 26, None, None).unwrap();
            assert_eq!(access.translation, expected, "{tlb:#x}");
        }
    }
}
