//! What a processor records of branches, and what it counts.

use pugmark_decoder_core::pebs::Format;

/// The debug control register's layout, which is the family's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugControl {
    /// IA32_DEBUGCTL: Core Solo and Duo and later.
    Core,
    /// MSR_DEBUGCTLA: NetBurst.
    NetBurst,
    /// MSR_DEBUGCTLB: Pentium M.
    PentiumM,
}

/// The Debug Store: branch records and samples in memory.
#[derive(Debug)]
pub struct DebugStore {
    /// The debug control register.
    pub control: DebugControl,
    /// CPUID.01H:ECX\[2\]: the save area has 64-bit fields in every mode.
    pub dtes64: bool,
    /// CPUID.01H:ECX\[4\]: branch records can be stored by privilege level.
    pub ds_cpl: bool,
    /// Branch records say whether the branch was predicted.
    pub predicted: bool,
    /// PEBS; `None`: IA32_MISC_ENABLE says that there is none.
    pub pebs: Option<Pebs>,
}

/// Processor Event Based Sampling.
#[derive(Debug)]
pub struct Pebs {
    /// The format of its records, which IA32_PERF_CAPABILITIES\[11:8\] names.
    pub format: Format,
    /// How many counters can be sampled, from the first on.
    pub counters: u32,
    /// Bits of IA32_PEBS_ENABLE that can be set besides those of the counters: load latency, which is not modelled.
    pub other_bits: u64,
}

/// The last branch record stack.
#[derive(Debug)]
pub struct LbrStack {
    /// IA32_PERF_CAPABILITIES\[5:0\].
    pub format: u8,
    /// How many records.
    pub entries: u32,
    /// MSR_LASTBRANCH_0_FROM_IP.
    pub from: u32,
    /// MSR_LASTBRANCH_0_TO_IP.
    pub to: u32,
    /// MSR_LBR_INFO_0.
    pub info: Option<u32>,
    /// MSR_LASTBRANCH_TOS.
    pub tos: u32,
    /// MSR_LER_FROM_LIP; MSR_LER_TO_LIP is the one behind it.
    pub ler: u32,
    /// Bits of MSR_LBR_SELECT that can be set; 0 when there is no such register.
    pub select: u64,
    /// The stack's registers can be written.
    pub writable: bool,
    /// It and TR cannot be used together: what is in the stack is undefined then.
    pub excludes_tr: bool,
}

/// The general-purpose counters.
#[derive(Debug)]
pub struct CounterProfile {
    /// CPUID.0AH:EAX\[15:8\].
    pub number: u32,
    /// Bits of a counter, CPUID.0AH:EAX\[23:16\].
    pub width: u32,
    /// IA32_PERF_CAPABILITIES\[13\]: IA32_A_PMCx can be written in full width.
    pub full_width: bool,
    /// What can be counted.
    pub events: &'static [IntelEvent],
}

/// An event that can be counted.
#[derive(Clone, Copy, Debug)]
pub struct IntelEvent {
    /// Event select.
    pub select: u8,
    /// Unit mask.
    pub umask: u8,
    /// What it counts.
    pub what: Counted,
    /// The counters that can sample it (PEBS), as bits.
    pub precise: u32,
}

/// What an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
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
}
