//! The part of a profile about branch records, samples and counters.

use pugmark_decoder_core::pebs::Format;

/// The debug control register's layout, which depends on the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugCtlLayout {
    /// IA32_DEBUGCTL: Core Solo and Duo and later.
    Core,
    /// MSR_DEBUGCTLA: NetBurst.
    NetBurst,
    /// MSR_DEBUGCTLB: Pentium M.
    PentiumM,
}

/// The Debug Store: branch records and samples in memory.
#[derive(Debug)]
pub struct DebugStoreProfile {
    /// The debug control register.
    pub debugctl: DebugCtlLayout,
    /// The save area has 64-bit fields in every mode, CPUID.01H:ECX\[2\].
    pub dtes64: bool,
    /// Branch records can be filtered by privilege level, CPUID.01H:ECX\[4\].
    pub ds_cpl: bool,
    /// Branch records have a flag for a predicted branch.
    pub predicted: bool,
    /// PEBS; `None` if IA32_MISC_ENABLE reports that it is unavailable.
    pub pebs: Option<PebsProfile>,
}

/// Processor Event Based Sampling.
#[derive(Debug)]
pub struct PebsProfile {
    /// The format of its records, as IA32_PERF_CAPABILITIES\[11:8\] reports it.
    pub format: Format,
    /// Number of general-purpose counters that can be sampled, counted from the first one.
    pub counters: u32,
    /// Number of fixed-function counters that can be sampled, counted from the first one.
    pub fixed: u32,
    /// Further bits of IA32_PEBS_ENABLE that can be set: load latency, which is not modelled.
    pub other_bits: u64,
}

/// The last branch record stack.
#[derive(Debug)]
pub struct LbrProfile {
    /// IA32_PERF_CAPABILITIES\[5:0\].
    pub format: u8,
    /// The number of records.
    pub entries: u32,
    /// MSR_LASTBRANCH_0_FROM_IP.
    pub from: u32,
    /// MSR_LASTBRANCH_0_TO_IP.
    pub to: u32,
    /// MSR_LBR_INFO_0.
    pub info: Option<u32>,
    /// MSR_LASTBRANCH_TOS.
    pub tos: u32,
    /// MSR_LER_FROM_LIP; MSR_LER_TO_LIP is the next register.
    pub ler: u32,
    /// Bits of MSR_LBR_SELECT that can be set; 0 if there is no such register.
    pub select: u64,
    /// True if the bits that exclude jumps exclude calls and returns, too.
    pub jumps_include_calls: bool,
    /// The stack's registers can be written.
    pub writable: bool,
    /// The stack's contents are undefined while TR is set.
    pub excludes_tr: bool,
}

/// The general-purpose counters.
#[derive(Debug)]
pub struct CounterProfile {
    /// CPUID.0AH:EAX\[15:8\].
    pub count: u32,
    /// The number of fixed-function counters, CPUID.0AH:EDX\[4:0\].
    pub fixed: u32,
    /// True if there is no AnyThread, CPUID.0AH:EDX\[15\].
    pub any_thread_deprecated: bool,
    /// The issue slots of a core clock, if there are events for them; otherwise 0.
    pub slots: u32,
    /// Bits of a counter, CPUID.0AH:EAX\[23:16\].
    pub width: u32,
    /// The full width of counters can be written, by IA32_A_PMCx: IA32_PERF_CAPABILITIES\[13\].
    pub full_width: bool,
    /// The events that can be counted.
    pub events: &'static [IntelEvent],
    /// CPUID.23H; `None` if there is no such leaf.
    pub extended: Option<ExtendedCounters>,
}

/// The counters as CPUID.23H enumerates them: those of the core that executes CPUID, of which a processor may have
/// several kinds.
#[derive(Debug)]
pub struct ExtendedCounters {
    /// The general-purpose counters, a bit each, CPUID.23H.1:EAX.
    pub general: u32,
    /// The fixed-function counters, a bit each, CPUID.23H.1:EBX.
    pub fixed: u32,
    /// CPUID.23H.0:EBX: IA32_PERFEVTSELx has UnitMask2 (bit 0), EQ (1).
    pub features: u32,
    /// CPUID.23H.0:ECX: the issue slots of a core clock, if they are enumerated.
    pub slots: u32,
    /// Auto Counter Reload, if there is any.
    pub reload: Option<AutoReloadProfile>,
}

/// Auto Counter Reload, CPUID.23H.2.
#[derive(Debug)]
pub struct AutoReloadProfile {
    /// The general-purpose and fixed-function counters that can be reloaded, a bit each, EAX and EBX.
    pub reloadable: [u32; 2],
    /// The counters whose overflow can reload others, ECX and EDX.
    pub causes: [u32; 2],
}

impl CounterProfile {
    /// Returns the general-purpose counters, a bit each.
    pub(crate) const fn general_mask(&self) -> u64 {
        match &self.extended {
            Some(extended) => extended.general as u64,
            None => (1 << self.count) - 1,
        }
    }

    /// Returns the fixed-function counters, a bit each.
    pub(crate) const fn fixed_mask(&self) -> u64 {
        match &self.extended {
            Some(extended) => extended.fixed as u64,
            None => (1 << self.fixed) - 1,
        }
    }
}

/// An event that can be counted.
#[derive(Clone, Copy, Debug)]
pub struct IntelEvent {
    /// Event select.
    pub select: u8,
    /// Unit mask.
    pub umask: u8,
    /// The counted unit.
    pub counts: CountedEvent,
    /// The counters that can sample the event (PEBS), one bit each.
    pub precise: u32,
}

/// The unit that an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedEvent {
    /// Instructions that retire.
    Instructions,
    /// Branches that retire, taken or not.
    Branches,
    /// Conditional branches that retire.
    Conditional,
    /// Near calls that retire.
    NearCalls,
    /// Near returns that retire.
    NearReturns,
    /// Near branches that retire and are taken.
    NearTaken,
    /// Far branches that retire.
    FarBranches,
    /// Branches that were mispredicted.
    Mispredicted,
    /// Core clocks, while the processor is not halted.
    CoreClocks,
    /// Clocks of the bus, while the processor is not halted.
    BusClocks,
    /// Issue slots, while the processor is not halted.
    Slots,
}

impl CountedEvent {
    /// Returns whether the event is time, independent of the instructions.
    pub(crate) const fn is_clock(self) -> bool {
        matches!(self, Self::CoreClocks | Self::BusClocks | Self::Slots)
    }
}
