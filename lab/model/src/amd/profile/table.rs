//! The table of profiles. Signatures and leaves are those of real parts of these families; where parts differ, one was
//! chosen.

use super::{AmdProfile, DataSources, Errata, Ibs, LastBranchKind};
use crate::amd::events::{K8_EVENTS, ZEN2_EVENTS, ZEN4_EVENTS};
use crate::amd::registers::evtsel;

const GUEST_HOST: u64 = evtsel::GUEST_ONLY | evtsel::HOST_ONLY;
/// The event-select bits of family 10h and later.
const WIDE: u64 = evtsel::COMMON | evtsel::EVENT_HIGH | GUEST_HOST;

/// IBS_CTL: the first entry of the extended LVT, valid.
const FIRST_ENTRY: u64 = 1 << 8;

/// The IBS features of Zen and Zen 2: all that were defined by then.
const ZEN_IBS: u32 = 0x3ff;

const ZEN: AmdProfile = AmdProfile {
    name: "",
    signature: 0,
    highest_leaf: 0x10,
    highest_extended_leaf: 0x8000_0020,
    physical_address_bits: 48,
    tsc_mhz: 2250,
    caches: [
        [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140],
        [0x4800_6400, 0x6800_6400, 0x0200_6140, 0x0800_9140],
    ],
    invariant_tsc: true,
    counters: 6,
    perf_mon_v2: false,
    event_select_bits: WIDE,
    events: &ZEN2_EVENTS,
    ibs: None,
    branches: None,
    extended_lvts: 4,
    northbridge: None,
    l3: true,
    fetch_block: 32,
    errata: Errata::NONE,
};

impl AmdProfile {
    /// Returns the profile of that name.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        Self::all().iter().find(|profile| profile.name == name)
    }

    /// Returns all profiles.
    pub fn all() -> &'static [Self] {
        &ALL
    }
}

static ALL: [AmdProfile; 8] = [
    AmdProfile {
        name: "k8",
        // Athlon 64 X2, revision F.
        signature: 0x0004_0f32,
        highest_leaf: 1,
        highest_extended_leaf: 0x8000_0018,
        physical_address_bits: 40,
        tsc_mhz: 2400,
        caches: [
            [0xff08_ff08, 0xff20_ff20, 0x4002_0140, 0x4002_0140],
            [0x0000_0000, 0x4200_4200, 0x0400_8140, 0x0000_0000],
        ],
        invariant_tsc: false,
        counters: 4,
        event_select_bits: evtsel::COMMON | evtsel::PC,
        events: &K8_EVENTS,
        extended_lvts: 1,
        l3: false,
        fetch_block: 16,
        ..ZEN
    },
    AmdProfile {
        name: "barcelona",
        // Revision B3, before Fn8000_001B.
        signature: 0x0010_0f23,
        highest_leaf: 5,
        highest_extended_leaf: 0x8000_001a,
        tsc_mhz: 2300,
        caches: [
            [0xff30_ff10, 0xff30_ff20, 0x4002_0140, 0x4002_0140],
            [0x2080_0000, 0x4200_4200, 0x0200_8140, 0x0010_a140],
        ],
        counters: 4,
        event_select_bits: WIDE | evtsel::PC,
        events: &K8_EVENTS,
        ibs: Some(Ibs { leaf: None, ctl: 0, sources: DataSources::Northbridge }),
        northbridge: Some(0x1200),
        errata: Errata::IBS_INTERRUPT_CANNOT_BE_CLEARED,
        ..ZEN
    },
    AmdProfile {
        name: "trinity",
        signature: 0x0061_0f01,
        highest_leaf: 0x0d,
        highest_extended_leaf: 0x8000_001e,
        tsc_mhz: 3800,
        caches: [
            [0xff40_ff18, 0xff40_ff30, 0x1004_0140, 0x4002_0140],
            [0x6400_6400, 0x6400_4200, 0x0800_8140, 0x0000_0000],
        ],
        events: &K8_EVENTS,
        ibs: Some(Ibs { leaf: Some(0xff), ctl: FIRST_ENTRY, sources: DataSources::Northbridge }),
        l3: false,
        errata: Errata::IBS_STICKY_TLB_BITS.with(Errata::IBS_FETCH_STARTS_AT_MAXIMUM),
        ..ZEN
    },
    AmdProfile {
        name: "zen2",
        signature: 0x0083_0f10,
        ibs: Some(Ibs { leaf: Some(ZEN_IBS), ctl: FIRST_ENTRY, sources: DataSources::Node }),
        errata: Errata::IBS_FETCH_COUNT_BY_ENABLE_ALONE,
        ..ZEN
    },
    AmdProfile {
        name: "zen3",
        signature: 0x00a0_0f11,
        highest_extended_leaf: 0x8000_0023,
        tsc_mhz: 2450,
        caches: [
            [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140],
            [0x4800_2200, 0x6800_4200, 0x0200_6140, 0x0800_9140],
        ],
        ibs: Some(Ibs { leaf: Some(ZEN_IBS), ctl: FIRST_ENTRY, sources: DataSources::NodeWithoutState }),
        branches: Some(LastBranchKind::Sampling),
        errata: Errata::IBS_FETCH_ADDRESS_ZERO
            .with(Errata::IBS_IC_MISS_WRONG)
            .with(Errata::IBS_DATA_SOURCE_WRONG)
            .with(Errata::IBS_FETCH_PAGE_SIZES),
        ..ZEN
    },
    AmdProfile {
        name: "zen4",
        signature: 0x00a1_0f11,
        highest_extended_leaf: 0x8000_0028,
        physical_address_bits: 52,
        tsc_mhz: 2400,
        caches: [
            [0xff48_ff40, 0xff48_ff40, 0x2008_0140, 0x2008_0140],
            [0x5c00_2200, 0x6c00_4200, 0x0400_6140, 0x0c00_9140],
        ],
        perf_mon_v2: true,
        events: &ZEN4_EVENTS,
        ibs: Some(Ibs { leaf: Some(0xbff), ctl: FIRST_ENTRY, sources: DataSources::Extended }),
        branches: Some(LastBranchKind::Stack),
        ..ZEN
    },
    AmdProfile {
        name: "zen5",
        signature: 0x00b0_0f21,
        highest_extended_leaf: 0x8000_0028,
        physical_address_bits: 52,
        tsc_mhz: 2700,
        caches: [
            [0xff60_ff40, 0xff60_ff40, 0x300c_0140, 0x2008_0140],
            [0x4080_2040, 0x6080_4040, 0x0400_8140, 0x0800_9140],
        ],
        perf_mon_v2: true,
        events: &ZEN4_EVENTS,
        // The size of the data's page is bit 19, as in Linux.
        ibs: Some(Ibs { leaf: Some(0x8_1bff), ctl: FIRST_ENTRY, sources: DataSources::Extended }),
        branches: Some(LastBranchKind::Stack),
        errata: Errata::IBS_LATENCY_FILTER_LEAKS,
        ..ZEN
    },
    AmdProfile {
        name: "zen6",
        signature: 0x00b5_0f00,
        highest_extended_leaf: 0x8000_0028,
        physical_address_bits: 52,
        tsc_mhz: 2700,
        caches: [
            [0xff60_ff40, 0xff60_ff40, 0x300c_0140, 0x2008_0140],
            [0x4080_2040, 0x6080_4040, 0x0400_8140, 0x0800_9140],
        ],
        perf_mon_v2: true,
        events: &ZEN4_EVENTS,
        ibs: Some(Ibs { leaf: Some(0x9_fbff), ctl: FIRST_ENTRY, sources: DataSources::Extended }),
        branches: Some(LastBranchKind::Stack),
        ..ZEN
    },
];
