//! The table of profiles. Signatures and leaves are those of real parts of these families; where parts differ, one was
//! chosen. `icelake` has PTWRITE and the preservation of PSBs and PMIs, which its successors introduced.
//! `sapphire-rapids` has every capability of Intel PT, and more address ranges than real parts. All profiles up to
//! `tremont` have the Debug Store and last branch records. The later ones have neither, as if they ran under a
//! hypervisor: their last branch records are architectural ones, and from `cougar-cove` on their samples are
//! architectural PEBS, which are not modelled.

use pugmark_decoder_core::pebs::Format;

use super::{
    AutoReloadProfile, CountedEvent, CounterProfile, DebugCtlLayout, DebugStoreProfile, ExtendedCounters,
    IntelEvent, IntelProfile, LbrProfile, PebsProfile,
};

/// No Intel PT, no frequencies, no counters: the defaults of the profiles below.
const NOTHING: IntelProfile = IntelProfile {
    name: "",
    signature: 0,
    highest_leaf: 0,
    physical_address_bits: 36,
    long_mode: true,
    perfmon_version: 0,
    perf_capabilities: None,
    counters: None,
    lbr: None,
    debug_store: None,
    uncore_pmi: false,
    pt_features: 0,
    pt_outputs: 0,
    address_ranges: 0,
    mtc_freqs: 0,
    cyc_thresholds: 0,
    psb_freqs: 0,
    tsc_ratio: (0, 0),
    crystal_hz: 0,
    max_mhz: 0,
    non_turbo_ratio: 0,
};

impl IntelProfile {
    /// Returns the profile of that name.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        Self::all().iter().chain([&PENTIUM_M]).find(|profile| profile.name == name)
    }

    /// Returns all profiles that run 64-bit code. `pentium-m` does not: only its debug control register's layout and
    /// its 32-bit save area are modelled.
    pub fn all() -> &'static [Self] {
        &ALL
    }
}

static ALL: [IntelProfile; 10] = [
    IntelProfile {
        name: "prescott",
        signature: 0x0000_0f43,
        highest_leaf: 5,
        lbr: Some(LbrProfile {
            format: 0,
            entries: 16,
            from: 0x680,
            to: 0x6c0,
            info: None,
            tos: 0x1da,
            ler: 0x1d7,
            select: 0,
            jumps_include_calls: false,
            writable: false,
            excludes_tr: false,
        }),
        debug_store: Some(DebugStoreProfile {
            debugctl: DebugCtlLayout::NetBurst,
            dtes64: true,
            ds_cpl: true,
            predicted: true,
            // NetBurst's counters are not modelled, so there is nothing to sample.
            pebs: None,
        }),
        non_turbo_ratio: 15,
        ..NOTHING
    },
    IntelProfile {
        name: "core2",
        signature: 0x0001_0676,
        highest_leaf: 0x0a,
        physical_address_bits: 38,
        perfmon_version: 2,
        // 64-bit LIP, PEBS_TRAP, PEBS_ARCH_REG.
        perf_capabilities: Some(0xc1),
        counters: Some(CounterProfile {
            count: 2,
            fixed: 3,
            any_thread_deprecated: false,
            slots: 0,
            width: 40,
            full_width: false,
            events: &CORE2_EVENTS,
            extended: None,
        }),
        lbr: Some(LbrProfile {
            format: 1,
            entries: 4,
            from: 0x40,
            to: 0x60,
            info: None,
            tos: 0x1c9,
            ler: 0x1dd,
            select: 0,
            jumps_include_calls: false,
            writable: true,
            excludes_tr: true,
        }),
        debug_store: Some(DebugStoreProfile {
            debugctl: DebugCtlLayout::Core,
            dtes64: true,
            ds_cpl: true,
            predicted: false,
            pebs: Some(PebsProfile { format: Format::Registers, counters: 1, fixed: 0, other_bits: 0 }),
        }),
        non_turbo_ratio: 9,
        ..NOTHING
    },
    IntelProfile {
        name: "nehalem",
        signature: 0x0001_06a5,
        highest_leaf: 0x0b,
        physical_address_bits: 40,
        perfmon_version: 3,
        // 64-bit EIP and flags, PEBS_TRAP, PEBS_ARCH_REG, PEBS_REC_FMT 1, SMM_FREEZE.
        perf_capabilities: Some(0x11c3),
        counters: Some(CounterProfile {
            count: 4,
            fixed: 3,
            any_thread_deprecated: false,
            slots: 0,
            width: 48,
            full_width: false,
            events: &NEHALEM_EVENTS,
            extended: None,
        }),
        lbr: Some(LbrProfile { jumps_include_calls: true, ..NEHALEM_STACK }),
        debug_store: Some(DebugStoreProfile {
            pebs: Some(PebsProfile {
                format: Format::Latency,
                counters: 4,
                fixed: 0,
                other_bits: LOAD_LATENCY,
            }),
            ..NEHALEM_DEBUG_STORE
        }),
        uncore_pmi: true,
        non_turbo_ratio: 20,
        ..NOTHING
    },
    IntelProfile {
        name: "broadwell",
        signature: 0x0003_06d4,
        highest_leaf: 0x14,
        physical_address_bits: 39,
        perfmon_version: 3,
        // 64-bit EIP and flags with TSX's, PEBS_TRAP, PEBS_ARCH_REG, PEBS_REC_FMT 2, SMM_FREEZE, FW_WRITE.
        perf_capabilities: Some(0x32c4),
        counters: Some(CounterProfile {
            count: 4,
            fixed: 3,
            any_thread_deprecated: false,
            slots: 0,
            width: 48,
            full_width: true,
            events: &BROADWELL_EVENTS,
            extended: None,
        }),
        lbr: Some(LbrProfile { format: 4, select: 0x3ff, ..NEHALEM_STACK }),
        debug_store: Some(DebugStoreProfile {
            pebs: Some(PebsProfile {
                format: Format::Transaction,
                counters: 4,
                fixed: 0,
                other_bits: LOAD_LATENCY,
            }),
            ..NEHALEM_DEBUG_STORE
        }),
        uncore_pmi: true,
        pt_features: 0b1,
        pt_outputs: 0b1,
        non_turbo_ratio: 26,
        ..NOTHING
    },
    IntelProfile {
        name: "skylake",
        signature: 0x0005_06e3,
        highest_leaf: 0x16,
        physical_address_bits: 39,
        perfmon_version: 4,
        // 64-bit EIP, flags and LBR_INFO, PEBS_TRAP, PEBS_ARCH_REG, PEBS_REC_FMT 3, SMM_FREEZE, FW_WRITE.
        perf_capabilities: Some(0x33c5),
        counters: Some(CounterProfile {
            count: 4,
            fixed: 3,
            any_thread_deprecated: false,
            slots: 0,
            width: 48,
            full_width: true,
            events: &SKYLAKE_EVENTS,
            extended: None,
        }),
        lbr: Some(SKYLAKE_STACK),
        debug_store: Some(DebugStoreProfile {
            pebs: Some(PebsProfile { format: Format::Time, counters: 4, fixed: 0, other_bits: LOAD_LATENCY }),
            ..NEHALEM_DEBUG_STORE
        }),
        uncore_pmi: true,
        pt_features: 0b1111,
        pt_outputs: 0b111,
        address_ranges: 2,
        mtc_freqs: 0x0249,
        cyc_thresholds: 0x3fff,
        psb_freqs: 0x003f,
        tsc_ratio: (250, 2),
        max_mhz: 3600,
        non_turbo_ratio: 30,
        ..NOTHING
    },
    IntelProfile {
        name: "icelake",
        signature: 0x0006_06a6,
        highest_leaf: 0x1b,
        physical_address_bits: 46,
        perfmon_version: 5,
        // 64-bit EIP, flags and LBR_INFO, PEBS_TRAP, PEBS_ARCH_REG, PEBS_REC_FMT 4, SMM_FREEZE, FW_WRITE,
        // PEBS_BASELINE.
        perf_capabilities: Some(0x74c5),
        counters: Some(CounterProfile {
            count: 8,
            fixed: 4,
            any_thread_deprecated: true,
            slots: 5,
            width: 48,
            full_width: true,
            events: &ICELAKE_EVENTS,
            extended: None,
        }),
        lbr: Some(SKYLAKE_STACK),
        debug_store: Some(DebugStoreProfile {
            pebs: Some(PebsProfile { format: Format::Adaptive, counters: 8, fixed: 4, other_bits: 0 }),
            ..NEHALEM_DEBUG_STORE
        }),
        uncore_pmi: true,
        pt_features: 0b0101_1111,
        pt_outputs: 0b111,
        address_ranges: 2,
        mtc_freqs: 0x0249,
        cyc_thresholds: 0x1fff,
        psb_freqs: 0x003f,
        tsc_ratio: (208, 2),
        crystal_hz: 25_000_000,
        max_mhz: 3500,
        non_turbo_ratio: 26,
        ..NOTHING
    },
    // Jasper Lake, an Atom of the microarchitecture Tremont. Source of its CPUID leaves: InstLatx64,
    // `GenuineIntel00906C0_JasperLake_CPUID01.txt`; of its IA32_PERF_CAPABILITIES: what Linux prints on a Celeron N5105
    // ("PEBS fmt4+-baseline, PEBS-via-PT, 32-deep LBR, full-width counters"). LIP (CPUID.14H.0:ECX[31]), which real
    // parts have, is not modelled.
    IntelProfile {
        name: "tremont",
        signature: 0x0009_06c0,
        highest_leaf: 0x1b,
        physical_address_bits: 39,
        perfmon_version: 5,
        // 64-bit EIP, flags and LBR_INFO, PEBS_TRAP, PEBS_ARCH_REG, PEBS_REC_FMT 4, SMM_FREEZE, FW_WRITE,
        // PEBS_BASELINE, PEBS_OUTPUT_PT_AVAIL.
        perf_capabilities: Some(0x1_74c5),
        counters: Some(CounterProfile {
            count: 4,
            fixed: 3,
            any_thread_deprecated: true,
            slots: 0,
            width: 48,
            full_width: true,
            events: &TREMONT_EVENTS,
            extended: None,
        }),
        lbr: Some(SKYLAKE_STACK),
        debug_store: Some(DebugStoreProfile {
            pebs: Some(PebsProfile { format: Format::Adaptive, counters: 4, fixed: 3, other_bits: 0 }),
            ..NEHALEM_DEBUG_STORE
        }),
        pt_features: 0b0111_1111,
        pt_outputs: 0b111,
        address_ranges: 2,
        mtc_freqs: 0x0249,
        cyc_thresholds: 0xffff,
        psb_freqs: 0x003f,
        tsc_ratio: (104, 2),
        crystal_hz: 38_400_000,
        max_mhz: 2900,
        non_turbo_ratio: 20,
        ..NOTHING
    },
    IntelProfile {
        name: "sapphire-rapids",
        signature: 0x0008_06f8,
        highest_leaf: 0x20,
        physical_address_bits: 52,
        perfmon_version: 5,
        // FW_WRITE.
        perf_capabilities: Some(0x2000),
        counters: Some(CounterProfile {
            count: 8,
            fixed: 4,
            any_thread_deprecated: true,
            slots: 6,
            width: 48,
            full_width: true,
            events: &ICELAKE_EVENTS,
            extended: None,
        }),
        pt_features: 0b1_1111_1111,
        pt_outputs: 0b1111,
        address_ranges: 4,
        mtc_freqs: 0x0249,
        cyc_thresholds: 0x3fff,
        psb_freqs: 0x003f,
        tsc_ratio: (160, 2),
        crystal_hz: 25_000_000,
        max_mhz: 3800,
        non_turbo_ratio: 20,
        ..NOTHING
    },
    // The P-core of Wildcat Lake, with the microarchitecture of Panther Lake's (Linux, `intel-family.h`). Source of its
    // CPUID leaves: a dump of a Core 5 320 in Bochs, `bochs/cpu/cpudb/intel/wildcat_lake.txt`. It enumerates
    // architectural PEBS (23H.4, 23H.5) and architectural LBRs (1CH), which are not modelled: CPUID does not show them.
    // Not in the dump, and so without a source: IA32_PERF_CAPABILITIES beyond FW_WRITE, and the 8 issue slots of a
    // clock (23H.0:ECX is 0).
    IntelProfile {
        name: "cougar-cove",
        counters: Some(CounterProfile {
            slots: 8,
            events: &ICELAKE_EVENTS,
            extended: Some(ExtendedCounters {
                general: 0x3ff,
                fixed: 0xf,
                features: 0b11,
                slots: 0,
                reload: None,
            }),
            ..WILDCAT_LAKE_COUNTERS
        }),
        ..WILDCAT_LAKE
    },
    // The E-core of the same processor, whose microarchitecture Clearwater Forest has, too; the same source. The
    // fixed-function counters 4 to 6 are there, but their events (bad speculation, front-end bound, retiring slots) are
    // not modelled: they stay as they are written. LIP (CPUID.14H.0:ECX[31]) is not modelled.
    IntelProfile {
        name: "darkmont",
        counters: Some(CounterProfile {
            slots: 0,
            events: &TREMONT_EVENTS,
            extended: Some(ExtendedCounters {
                general: 0xff,
                fixed: 0x77,
                features: 0b11,
                slots: 8,
                reload: Some(AutoReloadProfile { reloadable: [0xfc, 3], causes: [0xfc, 3] }),
            }),
            ..WILDCAT_LAKE_COUNTERS
        }),
        max_mhz: 3400,
        ..WILDCAT_LAKE
    },
];

/// Both kinds of cores of Wildcat Lake (Core 5 320).
const WILDCAT_LAKE: IntelProfile = IntelProfile {
    name: "",
    signature: 0x000d_0651,
    highest_leaf: 0x28,
    physical_address_bits: 46,
    perfmon_version: 6,
    // FW_WRITE.
    perf_capabilities: Some(0x2000),
    pt_features: 0b1_0101_1111,
    pt_outputs: 0b111,
    address_ranges: 2,
    mtc_freqs: 0x0249,
    cyc_thresholds: 0x003f,
    psb_freqs: 0x003f,
    tsc_ratio: (130, 2),
    crystal_hz: 38_400_000,
    max_mhz: 4600,
    non_turbo_ratio: 25,
    ..NOTHING
};

/// The same for their counters. CPUID.0AH has those that both kinds of cores have.
const WILDCAT_LAKE_COUNTERS: CounterProfile = CounterProfile {
    count: 8,
    fixed: 3,
    any_thread_deprecated: true,
    slots: 0,
    width: 48,
    full_width: true,
    events: &[],
    extended: None,
};

/// The Pentium M. Its counters are not modelled, nor its last branch records, two of which share one register.
static PENTIUM_M: IntelProfile = IntelProfile {
    name: "pentium-m",
    signature: 0x0000_06d8,
    highest_leaf: 2,
    physical_address_bits: 32,
    long_mode: false,
    debug_store: Some(DebugStoreProfile {
        debugctl: DebugCtlLayout::PentiumM,
        dtes64: false,
        ds_cpl: false,
        predicted: true,
        pebs: None,
    }),
    non_turbo_ratio: 17,
    ..NOTHING
};

/// The last branch record stack of Nehalem, but with the filter of Sandy Bridge and later processors.
const NEHALEM_STACK: LbrProfile = LbrProfile {
    format: 3,
    entries: 16,
    from: 0x680,
    to: 0x6c0,
    info: None,
    tos: 0x1c9,
    ler: 0x1dd,
    select: 0x1ff,
    jumps_include_calls: false,
    writable: true,
    excludes_tr: false,
};

/// The last branch record stack of Skylake, Ice Lake and Tremont.
const SKYLAKE_STACK: LbrProfile =
    LbrProfile { format: 5, entries: 32, info: Some(0xdc0), select: 0x3ff, ..NEHALEM_STACK };

/// The debug store of Nehalem and later processors, without samples.
const NEHALEM_DEBUG_STORE: DebugStoreProfile = DebugStoreProfile {
    debugctl: DebugCtlLayout::Core,
    dtes64: true,
    ds_cpl: true,
    predicted: true,
    pebs: None,
};

/// IA32_PEBS_ENABLE.LL_EN_PMCx.
const LOAD_LATENCY: u64 = 0xf << 32;

/// Returns core clocks, which extended PEBS samples. Source: SDM vol. 3, Performance Monitoring, "Pre-defined
/// Architectural Performance Events".
const fn core_clocks(precise: u32) -> IntelEvent {
    event(0x3c, 0x00, CountedEvent::CoreClocks, precise)
}

/// Returns the reference clock, which here is the bus clock: it is implementation-specific.
const fn bus_clocks(precise: u32) -> IntelEvent {
    event(0x3c, 0x01, CountedEvent::BusClocks, precise)
}

/// Source: SDM vol. 3, Performance Monitoring Events, "Pre-defined Architectural Performance Events", and Performance
/// Monitoring, the table "PEBS Performance Events for Intel Core Microarchitecture".
static CORE2_EVENTS: [IntelEvent; 5] = [
    core_clocks(0),
    bus_clocks(0),
    event(0xc0, 0x00, CountedEvent::Instructions, 0b1),
    event(0xc4, 0x00, CountedEvent::Branches, 0),
    event(0xc5, 0x00, CountedEvent::Mispredicted, 0b1),
];

/// Source: SDM vol. 3, Performance Monitoring Events, "Performance Monitoring Events for Processors Based on Intel
/// Microarchitecture Code Name Nehalem".
static NEHALEM_EVENTS: [IntelEvent; 7] = [
    core_clocks(0),
    bus_clocks(0),
    event(0xc0, 0x00, CountedEvent::Instructions, 0b1111),
    event(0xc4, 0x00, CountedEvent::Branches, 0b1111),
    event(0xc4, 0x01, CountedEvent::Conditional, 0b1111),
    event(0xc4, 0x02, CountedEvent::NearCalls, 0b1111),
    event(0xc5, 0x00, CountedEvent::Mispredicted, 0b1111),
];

/// Far branches are counted, but not sampled. Source: SDM vol. 3, Performance Monitoring, "PEBS Facility" of the
/// Haswell microarchitecture; Intel's event tables of Broadwell.
static BROADWELL_EVENTS: [IntelEvent; 13] = haswell_events(0);

/// Source: SDM vol. 3, Performance Monitoring, the table "Precise Events for the Skylake Microarchitecture".
static SKYLAKE_EVENTS: [IntelEvent; 13] = haswell_events(0b1111);

/// Returns the events from Haswell to Skylake; `far_branches`: the counters that sample far branches.
const fn haswell_events(far_branches: u32) -> [IntelEvent; 13] {
    [
        core_clocks(0),
        bus_clocks(0),
        event(0xc0, 0x00, CountedEvent::Instructions, 0),
        event(0xc0, 0x01, CountedEvent::Instructions, 0b0010),
        event(0xc4, 0x00, CountedEvent::Branches, 0),
        event(0xc4, 0x01, CountedEvent::Conditional, 0b1111),
        event(0xc4, 0x02, CountedEvent::NearCalls, 0b1111),
        event(0xc4, 0x04, CountedEvent::Branches, 0b1111),
        event(0xc4, 0x08, CountedEvent::NearReturns, 0b1111),
        event(0xc4, 0x20, CountedEvent::NearTaken, 0b1111),
        event(0xc4, 0x40, CountedEvent::FarBranches, far_branches),
        event(0xc5, 0x00, CountedEvent::Mispredicted, 0),
        event(0xc5, 0x04, CountedEvent::Mispredicted, 0b1111),
    ]
}

/// Extended PEBS samples any event on any counter. Source: SDM vol. 3, Performance Monitoring,
/// "Extended PEBS"; Intel's event tables of Ice Lake.
static ICELAKE_EVENTS: [IntelEvent; 11] = [
    core_clocks(0xff),
    bus_clocks(0xff),
    event(0xa4, 0x01, CountedEvent::Slots, 0xff),
    event(0xc0, 0x00, CountedEvent::Instructions, 0xff),
    event(0xc4, 0x00, CountedEvent::Branches, 0xff),
    event(0xc4, 0x11, CountedEvent::Conditional, 0xff),
    event(0xc4, 0x02, CountedEvent::NearCalls, 0xff),
    event(0xc4, 0x08, CountedEvent::NearReturns, 0xff),
    event(0xc4, 0x20, CountedEvent::NearTaken, 0xff),
    event(0xc4, 0x40, CountedEvent::FarBranches, 0xff),
    event(0xc5, 0x00, CountedEvent::Mispredicted, 0xff),
];

/// Source: Intel's event tables of Snow Ridge, in Linux, `tools/perf/pmu-events/arch/x86/snowridgex/pipeline.json`.
static TREMONT_EVENTS: [IntelEvent; 9] = [
    core_clocks(0b1111),
    bus_clocks(0b1111),
    event(0xc0, 0x00, CountedEvent::Instructions, 0b1111),
    event(0xc4, 0x00, CountedEvent::Branches, 0b1111),
    event(0xc4, 0x7e, CountedEvent::Conditional, 0b1111),
    event(0xc4, 0xf9, CountedEvent::NearCalls, 0b1111),
    event(0xc4, 0xf7, CountedEvent::NearReturns, 0b1111),
    event(0xc4, 0xbf, CountedEvent::FarBranches, 0b1111),
    event(0xc5, 0x00, CountedEvent::Mispredicted, 0b1111),
];

const fn event(select: u8, umask: u8, what: CountedEvent, precise: u32) -> IntelEvent {
    IntelEvent { select, umask, counts: what, precise }
}
