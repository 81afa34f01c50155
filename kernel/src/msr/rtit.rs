//! The registers of Intel Processor Trace: IA32_RTIT_*.
//!
//! Source for all of them: SDM vol. 3, Intel Processor Trace, "Configuration MSRs"; vol. 4, "IA-32 Architectural MSRs".
//! Scope: logical processor.

use super::{GeneralProtection, Msr, RegisterAt, TypedMsr};
use bitflags::bitflags;

bitflags! {
    /// IA32_RTIT_CTL (`0x570`): the packets that the unit generates, its filters and its output.
    ///
    /// While `TRACE_EN` is set, a write must clear it or leave the value unchanged; any other write is #GP(0). Setting
    /// a bit whose capability is not enumerated is #GP(0), too. Reset: 0. Source: "IA32_RTIT_CTL MSR".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RtitCtl: u64 {
        /// TraceEn: packets are generated.
        const TRACE_EN = 1 << 0;
        /// CYCEn: CYC packets.
        const CYC_EN = 1 << 1;
        /// OS: CPL 0 is traced.
        const OS = 1 << 2;
        /// User: CPL above 0 is traced.
        const USER = 1 << 3;
        /// PwrEvtEn: power event packets.
        const PWR_EVT_EN = 1 << 4;
        /// FUPonPTW: a FUP, a packet with an instruction's address, follows each PTW packet.
        const FUP_ON_PTW = 1 << 5;
        /// FabricEn: output to the trace transport subsystem.
        const FABRIC_EN = 1 << 6;
        /// CR3Filter: only the address space of IA32_RTIT_CR3_MATCH is traced.
        const CR3_FILTER = 1 << 7;
        /// ToPA: output through a table of physical addresses; if clear, into a single range.
        const TOPA = 1 << 8;
        /// MTCEn: MTC packets.
        const MTC_EN = 1 << 9;
        /// TSCEn: TSC packets.
        const TSC_EN = 1 << 10;
        /// DisRETC: no return compression, so that each return is a TIP packet (a packet with a target).
        const DIS_RETC = 1 << 11;
        /// PTWEn: PTWRITE emits packets.
        const PTW_EN = 1 << 12;
        /// BranchEn: change-of-flow packets.
        const BRANCH_EN = 1 << 13;
        /// MTCFreq: an MTC packet every 2^n ticks of the always running timer.
        const MTC_FREQ = 0xf << 14;
        /// CycThresh: 0 for every cycle count; n for at least 2^(n-1) cycles between two CYC packets.
        const CYC_THRESH = 0xf << 19;
        /// PSBFreq: a PSB, the packet at which a decoder can start, about every 2^(n+11) bytes.
        const PSB_FREQ = 0xf << 24;
        /// EventEn: event trace.
        const EVENT_EN = 1 << 31;
        /// ADDR0_CFG: see [`AddrCfg`].
        const ADDR0_CFG = 0xf << 32;
        /// ADDR1_CFG: see [`AddrCfg`].
        const ADDR1_CFG = 0xf << 36;
        /// ADDR2_CFG: see [`AddrCfg`].
        const ADDR2_CFG = 0xf << 40;
        /// ADDR3_CFG: see [`AddrCfg`].
        const ADDR3_CFG = 0xf << 44;
        /// DisTNT: no TNT packets (taken/not-taken bits of branches).
        const DIS_TNT = 1 << 55;
        /// InjectPsbPmiOnEnable: a PSB or PMI that was pending when the state was saved comes after the enable.
        const INJECT_PSB_PMI_ON_ENABLE = 1 << 56;
    }
}

impl RtitCtl {
    /// Sets an MTC packet every `2^n` ticks; n must be enumerated in `CPUID.14H.1:EAX[31:16]`.
    pub(crate) const fn with_mtc_freq(self, n: u8) -> Self {
        self.with_field(Self::MTC_FREQ, n)
    }

    /// Sets CYC packets at least `2^(n-1)` cycles apart, or 0 for all; n must be enumerated in `CPUID.14H.1:EBX[15:0]`.
    pub(crate) const fn with_cyc_thresh(self, n: u8) -> Self {
        self.with_field(Self::CYC_THRESH, n)
    }

    /// Sets a PSB about every `2^(n+11)` bytes of output; n must be enumerated in `CPUID.14H.1:EBX[31:16]`.
    pub(crate) const fn with_psb_freq(self, n: u8) -> Self {
        self.with_field(Self::PSB_FREQ, n)
    }

    /// Sets the use of address range `n`, which is 0 to 3.
    pub(crate) const fn with_addr_cfg(self, n: usize, cfg: AddrCfg) -> Self {
        self.with_field(Self::ADDR_CFG[n], cfg as u8)
    }

    const ADDR_CFG: [Self; 4] = [Self::ADDR0_CFG, Self::ADDR1_CFG, Self::ADDR2_CFG, Self::ADDR3_CFG];

    /// Returns the value of a field of at most 8 bits.
    pub(crate) const fn field(self, field: Self) -> u8 {
        (self.intersection(field).bits() >> field.bits().trailing_zeros()) as u8
    }

    const fn with_field(self, field: Self, value: u8) -> Self {
        let shift = field.bits().trailing_zeros();
        let value = ((value as u64) << shift) & field.bits();
        Self::from_bits_retain(self.bits() & !field.bits() | value)
    }
}

/// IA32_RTIT_CTL.ADDRn_CFG: the use of an address range. 0 is a range that is not used; values above 2 are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum AddrCfg {
    /// Only code in the range is traced (FilterEn).
    Filter = 1,
    /// TraceStop: the trace stops when execution enters the range.
    TraceStop = 2,
}

bitflags! {
    /// IA32_RTIT_STATUS (`0x571`): the state of the trace.
    ///
    /// Any write while `TRACE_EN` is set is #GP(0). Reset: 0. Source: "IA32_RTIT_STATUS MSR".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RtitStatus: u64 {
        /// FilterEn: the IP is in a traced range. Read only: a write is ignored.
        const FILTER_EN = 1 << 0;
        /// ContextEn: the context (CPL, CR3) is traced. Read only: a write is ignored.
        const CONTEXT_EN = 1 << 1;
        /// TriggerEn: tracing is on. Read only: a write is ignored.
        const TRIGGER_EN = 1 << 2;
        /// Error: an operational error stopped the trace. Stays until software clears it.
        const ERROR = 1 << 4;
        /// Stopped: a ToPA STOP or a TraceStop range stopped the trace. Stays until software clears it.
        const STOPPED = 1 << 5;
        /// PendPSB: a PSB was pending when the state was saved.
        const PEND_PSB = 1 << 6;
        /// PendToPAPMI: a PMI was pending when the state was saved.
        const PEND_TOPA_PMI = 1 << 7;
        /// PacketByteCnt: bytes since the last PSB. With 0 the next enable emits a PSB+, a PSB with the decoder's
        /// initial state.
        const PACKET_BYTE_CNT = 0x1_ffff << 32;
    }
}

bitflags! {
    /// IA32_XSS (`0xda0`): the supervisor state components that XSAVES saves. Only read here.
    ///
    /// Source: SDM vol. 1, Managing State Using the XSAVE Feature Set, "Enabling the XSAVE Feature Set and
    /// XSAVE-Enabled Features".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Xss: u64 {
        /// PT state: registers of Intel PT.
        const PT = 1 << 8;
    }
}

/// IA32_RTIT_OUTPUT_BASE (`0x560`): the physical address of the output range, or of the current ToPA table.
///
/// The processor writes it while it traces: a read has a meaning only after TraceEn is cleared. Bits 6:0 and those from
/// MAXPHYADDR on are reserved. Source: "IA32_RTIT_OUTPUT_BASE MSR".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputBase(pub u64);

/// IA32_RTIT_OUTPUT_MASK_PTRS (`0x561`): the size of the output range or the current ToPA entry, and the offset of the
/// next byte.
///
/// The processor writes it while it traces: a read has a meaning only after TraceEn is cleared. Source:
/// "IA32_RTIT_OUTPUT_MASK_PTRS MSR".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputMaskPtrs(u64);

impl OutputMaskPtrs {
    /// LowerMask, bits 6:0: read as ones, whatever value is written.
    pub const LOWER_MASK: u64 = 0x7f;

    /// Returns the value for single-range output: the range's size minus one, and the offset of the next byte.
    #[must_use]
    pub const fn single_range(mask: u32, offset: u32) -> Self {
        Self(mask as u64 | Self::LOWER_MASK | (offset as u64) << 32)
    }

    /// Returns the value for ToPA output: the index of the entry in its table (in units of 8 bytes from the table's
    /// base, 25 bits), and the offset of the next byte in that entry's region.
    #[must_use]
    pub const fn topa(entry: u32, offset: u32) -> Self {
        Self(((entry & 0x1ff_ffff) as u64) << 7 | Self::LOWER_MASK | (offset as u64) << 32)
    }

    /// Returns the entry's index in ToPA output: MaskOrTableOffset.
    #[must_use]
    pub const fn entry(self) -> u32 {
        (self.0 as u32) >> 7
    }

    /// Returns the size of a single range minus one: the lower half.
    pub(crate) const fn mask(self) -> u32 {
        self.0 as u32
    }

    /// Returns the offset of the next byte: OutputOffset.
    #[must_use]
    pub const fn offset(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// IA32_RTIT_CR3_MATCH (`0x572`): the CR3 that is traced, bits 63:5; bits 4:0 are reserved.
///
/// CR3\[11:5\] are compared only with PAE paging, where they are part of an address. In IA-32e mode, including
/// compatibility mode, they belong to a PCID or are ignored, and bits 63:12 are compared. Source: "IA32_RTIT_CR3_MATCH
/// MSR", "Filtering by CR3".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cr3Match(pub u64);

/// Returns IA32_RTIT_ADDRn_A (`0x580 + 2n`): the first linear address of range `n`; canonical. Source:
/// "IA32_RTIT_ADDRn_A and IA32_RTIT_ADDRn_B MSRs".
pub(crate) const fn addr_a(n: u32) -> RegisterAt {
    RegisterAt::new(0x580 + 2 * n)
}

/// Returns IA32_RTIT_ADDRn_B (`0x581 + 2n`): the last linear address of range `n`; canonical. Source: as [`addr_a`].
pub(crate) const fn addr_b(n: u32) -> RegisterAt {
    RegisterAt::new(0x581 + 2 * n)
}

/// Clears TraceEn if it is set. Returns IA32_RTIT_CTL as it was.
pub(crate) fn clear_trace_en(msr: &mut impl Msr) -> Result<RtitCtl, GeneralProtection> {
    let ctl: RtitCtl = msr.read()?;
    if ctl.contains(RtitCtl::TRACE_EN) {
        // SAFETY: clearing TraceEn only ends writes to memory.
        unsafe { msr.write(ctl.difference(RtitCtl::TRACE_EN)) }?;
    }
    Ok(ctl)
}

flags! {
    RtitCtl = 0x570,
    RtitStatus = 0x571,
    Xss = 0xda0,
}

values! {
    OutputBase = 0x560,
    OutputMaskPtrs = 0x561,
    Cr3Match = 0x572,
}
