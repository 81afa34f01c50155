//! The profiles: the CPUID of a processor, its optional units, and its errata.

use super::events::AmdEvent;

mod table;

/// A processor's capabilities.
///
/// Profiles do not enumerate features that the model lacks: SVM, the counters of the northbridge, of the L2 and of the
/// L3 caches, DebugCtl's older records, lightweight profiling.
#[derive(Debug)]
pub struct AmdProfile {
    /// Name: `k8`, `barcelona`, `trinity`, `zen2`, `zen3`, `zen4`, `zen5` or `zen6`.
    pub name: &'static str,
    /// Family, model and stepping, as in CPUID Fn0000_0001 EAX.
    pub signature: u32,
    /// CPUID Fn0000_0000 EAX.
    pub highest_leaf: u32,
    /// CPUID Fn8000_0000 EAX.
    pub highest_extended_leaf: u32,
    /// Physical address bits.
    pub physical_address_bits: u32,
    /// The frequency of the TSC, and of the core in its only P-state, in MHz.
    pub tsc_mhz: u32,
    /// The caches and TLBs: CPUID Fn8000_0005 and Fn8000_0006, EAX to EDX.
    pub caches: [[u32; 4]; 2],
    /// The TSC is invariant, CPUID Fn8000_0007 EDX\[8\].
    pub invariant_tsc: bool,
    /// The number of core performance counters: four, or six with PerfCtrExtCore.
    pub counters: u32,
    /// PerfMonV2: the global registers exist.
    pub perf_mon_v2: bool,
    /// The bits of PerfEvtSel that are not reserved.
    pub event_select_bits: u64,
    /// The events that can be counted.
    pub(super) events: &'static [AmdEvent],
    /// Instruction-Based Sampling, if the processor has it.
    pub ibs: Option<Ibs>,
    /// The unit that records the last branches, if the processor has one.
    pub branches: Option<LastBranchKind>,
    /// The number of entries of the extended LVT, at most four.
    pub extended_lvts: u32,
    /// PCI device ID of the northbridge's first function, if the northbridge is modelled.
    pub northbridge: Option<u16>,
    /// There is a level-3 cache.
    pub l3: bool,
    /// The size of a fetch block in bytes.
    pub fetch_block: u64,
    /// The deviations from the manual.
    pub errata: Errata,
}

/// Instruction-Based Sampling.
#[derive(Clone, Copy, Debug)]
pub struct Ibs {
    /// CPUID Fn8000_001B EAX; `None` if IBS exists but the leaf does not.
    pub leaf: Option<u32>,
    /// IBS_CTL as firmware left it. On a processor with a modelled northbridge, F3x1CC is used instead.
    pub ctl: u64,
    /// The encoding of data sources in IbsOpData2.
    pub sources: DataSources,
}

/// The number of entries of the last branches.
pub(super) const LAST_BRANCHES: usize = 16;

/// The registers that record branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBranchKind {
    /// The Last Branch Record Stack of 16 entries; an overflow can freeze it.
    Stack,
    /// Branch sampling with 16 entries.
    Sampling,
}

impl LastBranchKind {
    /// Returns the number of branches that they hold.
    pub const fn depth(self) -> u32 {
        LAST_BRANCHES as u32
    }
}

/// The encoding of data sources in IbsOpData2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSources {
    /// Sources of the northbridge's requests: 1 the level-3 cache, 3 DRAM, 7 neither.
    Northbridge,
    /// 2 a cache of the node, 3 DRAM, 7 neither; with the state of the cache's line.
    Node,
    /// The same values as [`Node`](Self::Node), without the state.
    ///
    /// Source: Linux, `arch/x86/events/amd/ibs.c`: on Zen 3 the register has only the source and its node.
    NodeWithoutState,
    /// 1 the level-3 cache, 3 DRAM, 7 neither, in five bits; with the state of the cache's line.
    Extended,
}

/// A processor's deviations from the manual, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errata(u32);

impl Errata {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// 420: stopping IBS op sampling by IbsOpEn alone leaves the tagging engine on, which raises interrupts without a
    /// sample, until a maximum count of 0 is written.
    ///
    /// Source: Revision Guide for AMD Family 10h Processors, "Instruction-Based Sampling Engine May Generate Interrupt
    /// that Cannot Be Cleared".
    pub const IBS_INTERRUPT_CANNOT_BE_CLEARED: Self = Self(1 << 0);
    /// 718: IbsOpData3 keeps IbsDcL2TlbMiss, IbsDcL2tlbHit2M and IbsDcL2TlbHit1G of earlier samples until software
    /// clears them.
    ///
    /// Source: Revision Guide for AMD Family 15h Models 00h-0Fh Processors.
    pub const IBS_STICKY_TLB_BITS: Self = Self(1 << 1);
    /// 719: a fetch counter that restarts while IbsFetchEn stays set begins at the maximum, and the next fetch is
    /// tagged.
    ///
    /// Source: Revision Guide for AMD Family 15h Models 10h-1Fh Processors.
    pub const IBS_FETCH_STARTS_AT_MAXIMUM: Self = Self(1 << 2);
    /// Families 16h to 18h: the fetch counter takes its start from IbsFetchCnt only when IbsFetchEn changes from 0 to
    /// 1.
    ///
    /// Source: PPR for AMD Family 17h Model 31h, "IBS Fetch Control".
    pub const IBS_FETCH_COUNT_BY_ENABLE_ALONE: Self = Self(1 << 3);
    /// 1197: IbsFetchLinAd may be 0.
    ///
    /// Source: Revision Guide for AMD Family 19h Models 00h-0Fh Processors.
    pub const IBS_FETCH_ADDRESS_ZERO: Self = Self(1 << 4);
    /// 1238: IbsIcMiss is not reliable.
    ///
    /// Source: as above.
    pub const IBS_IC_MISS_WRONG: Self = Self(1 << 5);
    /// 1293: IbsOpData2 is not valid for a software prefetch.
    ///
    /// Source: as above.
    pub const IBS_DATA_SOURCE_WRONG: Self = Self(1 << 6);
    /// 1347: IbsL1TlbPgSz is 0 for 4 KiB, 1 for 16 KiB, 2 for 2 MiB, 3 for 1 GiB.
    ///
    /// Source: as above.
    pub const IBS_FETCH_PAGE_SIZES: Self = Self(1 << 7);
    /// 1606: the filter by load latency lets other samples through, unless IbsOpL3MissOnly is set.
    ///
    /// Source: Revision Guide for AMD Family 1Ah Models 00h-0Fh Processors.
    pub const IBS_LATENCY_FILTER_LEAKS: Self = Self(1 << 8);

    /// 1452: the last branch stack has entries that are no branches, with the valid and the speculative bit set, and
    /// bit 61 of the target. They follow each eighth branch here; no profile has the erratum, because an operating
    /// system that does not know the erratum takes them for branches.
    ///
    /// Source: Revision Guide for AMD Family 19h Models 10h-1Fh Processors.
    pub const LBR_ENTRIES_WITHOUT_BRANCH: Self = Self(1 << 9);

    /// Returns the errata of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if `erratum` is in the set.
    #[must_use]
    pub const fn has(self, erratum: Self) -> bool {
        self.0 & erratum.0 != 0
    }
}

impl AmdProfile {
    /// Returns the family.
    pub const fn family(&self) -> u32 {
        let base = self.signature >> 8 & 0xf;
        if base == 0xf { base + (self.signature >> 20 & 0xff) } else { base }
    }

    /// Returns true if each interrupt and exception counts as a retired instruction. INT n is an instruction anyway.
    ///
    /// Source: BKDG for AMD Family 10h Processors, EventSelect 0C0h; OProfile and libpfm agree for family 0Fh. For
    /// family 15h it is an assumption; the PPRs do not define it.
    pub(super) const fn counts_events_as_instructions(&self) -> bool {
        self.family() < 0x17
    }

    /// Returns the event selects that can be counted, without unit masks.
    pub fn event_selects(&self) -> impl Iterator<Item = u16> {
        self.events.iter().map(|event| event.select)
    }

    /// Returns true if the processor has PerfCtrExtCore: the extended counter registers.
    pub(super) const fn has_extended_counters(&self) -> bool {
        self.counters > 4
    }

    /// Returns the features of IBS: bits of Fn8000_001B EAX. Without that leaf they are only fetch and op sampling.
    pub(super) const fn ibs_features(&self) -> u32 {
        use super::registers::ibs_cap;
        match &self.ibs {
            None => 0,
            Some(Ibs { leaf: Some(leaf), .. }) => *leaf,
            Some(Ibs { leaf: None, .. }) => ibs_cap::FFV | ibs_cap::FETCH_SAM | ibs_cap::OP_SAM,
        }
    }
}
