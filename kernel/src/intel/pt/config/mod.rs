//! The configuration of a trace, checked against the processor's capabilities before any register is written.

mod for_decoder;
#[cfg(test)]
mod tests;

use crate::intel::errata::Errata;
use crate::intel::pt::{CpuidField, Feature, PtCapabilities};
use crate::msr::{AddrCfg, RtitCtl};
use core::fmt;

/// The configuration of a trace. Nothing is traced unless [`PtConfig::os`] or [`PtConfig::user`] is set.
///
/// The configuration is checked before any register is written; a refusal names the CPUID bit that is missing:
///
/// ```
/// use pugmark_kernel::cpuid::CpuIdResult;
/// use pugmark_kernel::intel::pt::{PtCapabilities, PtConfig};
///
/// // A processor without cycle-accurate mode; a kernel takes `PtCapabilities::of_this_processor()`.
/// let cpuid = |leaf, subleaf| match (leaf, subleaf) {
///     (0, _) => CpuIdResult { eax: 0x14, ebx: 0, ecx: 0, edx: 0 },
///     (7, 0) => CpuIdResult { eax: 0, ebx: 1 << 25, ecx: 0, edx: 0 },
///     (0x14, 0) => CpuIdResult { eax: 0, ebx: 1, ecx: 3, edx: 0 },
///     _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
/// };
/// let capabilities = PtCapabilities::read(cpuid)?;
/// let config = PtConfig::new().os(true).cr3(0x1000);
/// assert!(config.check(&capabilities).is_ok());
/// let refusal = config.cycles(0).check(&capabilities).unwrap_err();
/// assert_eq!(refusal.to_string(), "CPUID.14H.0:EBX[1] (cycle-accurate mode) is not there");
/// # Ok::<(), pugmark_kernel::lifecycle::Missing>(())
/// ```
///
/// Source: SDM vol. 3, Intel Processor Trace, "IA32_RTIT_CTL MSR", "Trace Filtering".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtConfig {
    flags: RtitCtl,
    mtc_freq: Option<u8>,
    cyc_thresh: Option<u8>,
    psb_freq: Option<u8>,
    cr3: Option<u64>,
    ranges: [Option<Range>; MAX_RANGES],
    range_count: usize,
}

impl PtConfig {
    /// Returns a configuration with change-of-flow packets only, and no privilege level yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            flags: RtitCtl::BRANCH_EN,
            mtc_freq: None,
            cyc_thresh: None,
            psb_freq: None,
            cr3: None,
            ranges: [None; MAX_RANGES],
            range_count: 0,
        }
    }

    /// Sets OS: traces code at CPL 0.
    #[must_use]
    pub const fn os(self, on: bool) -> Self {
        self.flag(RtitCtl::OS, on)
    }

    /// Sets User: traces code at CPL 1 to 3.
    #[must_use]
    pub const fn user(self, on: bool) -> Self {
        self.flag(RtitCtl::USER, on)
    }

    /// Sets BranchEn: change-of-flow packets. On by default; off needs [`Feature::Mtc`].
    #[must_use]
    pub const fn branches(self, on: bool) -> Self {
        self.flag(RtitCtl::BRANCH_EN, on)
    }

    /// Sets return compression (DisRETC = 0): a return to the expected address is one TNT bit, not a TIP packet. On by
    /// default.
    #[must_use]
    pub const fn return_compression(self, on: bool) -> Self {
        self.flag(RtitCtl::DIS_RETC, !on)
    }

    /// Sets whether there are TNT packets (DisTNT = 0), which give taken/not-taken bits of conditional branches. On by
    /// default; off needs [`Feature::TntDisable`].
    #[must_use]
    pub const fn tnt(self, on: bool) -> Self {
        self.flag(RtitCtl::DIS_TNT, !on)
    }

    /// Sets TSCEn: TSC packets, and TMA packets if there are MTC packets.
    #[must_use]
    pub const fn tsc(self, on: bool) -> Self {
        self.flag(RtitCtl::TSC_EN, on)
    }

    /// Sets MTCEn: an MTC packet every `2^freq` ticks of the always running timer. Needs [`Feature::Mtc`].
    #[must_use]
    pub const fn mtc(mut self, freq: u8) -> Self {
        self.mtc_freq = Some(freq);
        self.flag(RtitCtl::MTC_EN, true)
    }

    /// Sets CYCEn: cycle counts. With `threshold` 0, each packet that can have a cycle count has one; otherwise the
    /// counts are at least `2^(threshold-1)` cycles apart. Needs [`Feature::CycleAccurate`].
    #[must_use]
    pub const fn cycles(mut self, threshold: u8) -> Self {
        self.cyc_thresh = Some(threshold);
        self.flag(RtitCtl::CYC_EN, true)
    }

    /// Sets PSBFreq: a PSB, at which a decoder can start, about every `2^(freq+11)` bytes of output. Needs
    /// [`Feature::CycleAccurate`].
    #[must_use]
    pub const fn psb_freq(mut self, freq: u8) -> Self {
        self.psb_freq = Some(freq);
        self
    }

    /// Sets PTWEn: the PTWRITE instruction emits packets. Needs [`Feature::Ptwrite`].
    #[must_use]
    pub const fn ptwrite(self, on: bool) -> Self {
        self.flag(RtitCtl::PTW_EN, on)
    }

    /// Sets FUPonPTW: a packet with the IP of PTWRITE (FUP) follows each PTW packet. Needs [`Feature::Ptwrite`].
    #[must_use]
    pub const fn fup_on_ptw(self, on: bool) -> Self {
        self.flag(RtitCtl::FUP_ON_PTW, on)
    }

    /// Sets PwrEvtEn: packets for C-states and frequency stops. Needs [`Feature::PowerEventTrace`].
    #[must_use]
    pub const fn power_events(self, on: bool) -> Self {
        self.flag(RtitCtl::PWR_EVT_EN, on)
    }

    /// Sets EventEn: packets for interrupts, exceptions and similar events, with kind and vector. Needs
    /// [`Feature::EventTrace`].
    #[must_use]
    pub const fn events(self, on: bool) -> Self {
        self.flag(RtitCtl::EVENT_EN, on)
    }

    /// Sets InjectPsbPmiOnEnable. Needs [`Feature::PsbPmiPreservation`].
    #[must_use]
    pub const fn inject_psb_pmi_on_enable(self, on: bool) -> Self {
        self.flag(RtitCtl::INJECT_PSB_PMI_ON_ENABLE, on)
    }

    /// Sets FabricEn: the packets go to the trace transport subsystem, which the kernel sets up itself, and none into
    /// the memory of the trace, which stays empty. Needs [`Feature::TraceTransport`].
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "IA32_RTIT_CTL MSR" and "Trace Output".
    #[must_use]
    pub const fn trace_transport(self, on: bool) -> Self {
        self.flag(RtitCtl::FABRIC_EN, on)
    }

    /// Sets CR3Filter: traces only code under this CR3, given without its PCID. Needs [`Feature::Cr3Filtering`].
    ///
    /// In IA-32e mode the processor compares bits 63:12, so all PCIDs of a page table match; with PAE paging it
    /// compares bits 63:5.
    #[must_use]
    pub const fn cr3(mut self, cr3: u64) -> Self {
        self.cr3 = Some(cr3);
        self.flag(RtitCtl::CR3_FILTER, true)
    }

    /// Traces only code from `first` to `last`, both included; with several filters, code in any of them is traced.
    /// Needs [`Feature::IpFiltering`].
    #[must_use]
    pub const fn filter(self, first: u64, last: u64) -> Self {
        self.range(Range { first, last, cfg: AddrCfg::Filter })
    }

    /// Stops the trace when execution enters code from `first` to `last`, both included. Needs
    /// [`Feature::IpFiltering`].
    #[must_use]
    pub const fn trace_stop(self, first: u64, last: u64) -> Self {
        self.range(Range { first, last, cfg: AddrCfg::TraceStop })
    }

    /// Checks that the processor supports the configuration. A start makes the same check.
    ///
    /// # Errors
    ///
    /// The processor would refuse the configuration, or it has no meaning.
    pub fn check(&self, capabilities: &PtCapabilities) -> Result<(), PtConfigRefusal> {
        self.checked(capabilities).map(|_| ())
    }

    /// Returns the values for the registers, without TraceEn and the bits of the output.
    pub(crate) fn checked(&self, capabilities: &PtCapabilities) -> Result<Checked, PtConfigRefusal> {
        for (flag, feature) in NEEDS {
            if self.flags.contains(flag) {
                require(capabilities, feature)?;
            }
        }
        if !self.flags.contains(RtitCtl::BRANCH_EN) {
            require(capabilities, Feature::Mtc)?;
            if capabilities.errata.contains(Errata::BRANCH_EN_MUST_BE_SET) {
                return Err(PtConfigRefusal::BranchEnErratum);
            }
        }
        if self.psb_freq.is_some() {
            require(capabilities, Feature::CycleAccurate)?;
        }
        let cycle_accurate = capabilities.has(Feature::CycleAccurate);
        let mtc = capabilities.has(Feature::Mtc);
        let mtc_freq = encoding(CpuidField::MTC_FREQS, mtc, capabilities.mtc_freqs, self.mtc_freq)?;
        let cyc_thresh = encoding(
            CpuidField::CYC_THRESHOLDS,
            cycle_accurate,
            capabilities.cyc_thresholds,
            self.cyc_thresh,
        )?;
        let psb_freq =
            encoding(CpuidField::PSB_FREQS, cycle_accurate, capabilities.psb_freqs, self.psb_freq)?;
        if let Some(cr3) = self.cr3.filter(|cr3| cr3 & 0x1f != 0) {
            return Err(PtConfigRefusal::Cr3 { cr3 });
        }
        let mut ctl = self.flags.with_mtc_freq(mtc_freq).with_cyc_thresh(cyc_thresh).with_psb_freq(psb_freq);
        if self.range_count > 0 {
            require(capabilities, Feature::IpFiltering)?;
            if self.range_count > usize::from(capabilities.address_ranges) {
                return Err(PtConfigRefusal::Ranges {
                    wanted: self.range_count,
                    there: capabilities.address_ranges,
                });
            }
        }
        for (n, range) in self.ranges.iter().enumerate() {
            if let Some(range) = range {
                range.check(capabilities.linear_address_bits)?;
                ctl = ctl.with_addr_cfg(n, range.cfg);
            }
        }
        Ok(Checked { ctl, cr3: self.cr3, ranges: self.ranges })
    }

    const fn flag(mut self, flag: RtitCtl, on: bool) -> Self {
        self.flags = match on {
            true => self.flags.union(flag),
            false => self.flags.difference(flag),
        };
        self
    }

    const fn range(mut self, range: Range) -> Self {
        // Ranges that do not fit are counted, and the check refuses them.
        if self.range_count < MAX_RANGES {
            self.ranges[self.range_count] = Some(range);
        }
        self.range_count += 1;
        self
    }
}

impl Default for PtConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// A configuration that this processor supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// IA32_RTIT_CTL without TraceEn and ToPA.
    pub(crate) ctl: RtitCtl,
    pub(crate) cr3: Option<u64>,
    pub(crate) ranges: [Option<Range>; MAX_RANGES],
}

/// A range of linear addresses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) last: u64,
    cfg: AddrCfg,
}

impl Range {
    fn check(&self, linear_address_bits: u8) -> Result<(), PtConfigRefusal> {
        for address in [self.first, self.last] {
            let unused = 64 - u32::from(linear_address_bits.clamp(32, 64));
            if (address << unused) as i64 >> unused != address as i64 {
                return Err(PtConfigRefusal::NotCanonical { address });
            }
        }
        if self.first > self.last {
            return Err(PtConfigRefusal::RangeReversed { first: self.first, last: self.last });
        }
        Ok(())
    }
}

/// The reason why this processor does not support a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtConfigRefusal {
    /// The processor lacks a feature.
    Missing(Feature),
    /// An encoding that the processor does not enumerate.
    Encoding {
        /// The CPUID field that enumerates the allowed encodings.
        field: CpuidField,
        /// The requested encoding.
        value: u8,
        /// Bit n is set if the encoding n is allowed.
        allowed: u16,
    },
    /// More address ranges than the processor has.
    Ranges {
        /// The requested number.
        wanted: usize,
        /// The number that the processor has.
        there: u8,
    },
    /// Bits 4:0 of the CR3 to match are not 0.
    Cr3 {
        /// The requested value.
        cr3: u64,
    },
    /// One end of an address range is not canonical.
    NotCanonical {
        /// The address.
        address: u64,
    },
    /// An address range ends before it begins.
    RangeReversed {
        /// The range's first address.
        first: u64,
        /// The range's last address.
        last: u64,
    },
    /// Erratum BDM106: this model does not support BranchEn = 0.
    BranchEnErratum,
}

impl fmt::Display for PtConfigRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(feature) => write!(f, "{feature} is not there"),
            Self::Encoding { field, value, allowed } => {
                write!(f, "{field} is {allowed:#06x}, a bit for each value: {value} is not allowed")
            }
            Self::Ranges { wanted, there } => {
                write!(f, "{} is {there}, and the configuration has {wanted}", CpuidField::ADDRESS_RANGES)
            }
            Self::Cr3 { cr3 } => write!(f, "CR3 to match {cr3:#x}: bits 4:0 must be 0"),
            Self::NotCanonical { address } => write!(f, "address {address:#x} of a range is not canonical"),
            Self::RangeReversed { first, last } => {
                write!(f, "address range {first:#x}..={last:#x} is reversed")
            }
            Self::BranchEnErratum => f.write_str("BranchEn must be set on this model (erratum BDM106)"),
        }
    }
}

impl core::error::Error for PtConfigRefusal {}

/// The feature that each flag needs.
const NEEDS: [(RtitCtl, Feature); 10] = [
    (RtitCtl::CYC_EN, Feature::CycleAccurate),
    (RtitCtl::MTC_EN, Feature::Mtc),
    (RtitCtl::PTW_EN, Feature::Ptwrite),
    (RtitCtl::FUP_ON_PTW, Feature::Ptwrite),
    (RtitCtl::PWR_EVT_EN, Feature::PowerEventTrace),
    (RtitCtl::FABRIC_EN, Feature::TraceTransport),
    (RtitCtl::CR3_FILTER, Feature::Cr3Filtering),
    (RtitCtl::EVENT_EN, Feature::EventTrace),
    (RtitCtl::DIS_TNT, Feature::TntDisable),
    (RtitCtl::INJECT_PSB_PMI_ON_ENABLE, Feature::PsbPmiPreservation),
];

const MAX_RANGES: usize = 4;

fn require(capabilities: &PtCapabilities, feature: Feature) -> Result<(), PtConfigRefusal> {
    match capabilities.has(feature) {
        true => Ok(()),
        false => Err(PtConfigRefusal::Missing(feature)),
    }
}

/// Returns the requested encoding, or the lowest allowed one: the processor checks an encoding even while the packets
/// that it configures are off.
fn encoding(field: CpuidField, there: bool, allowed: u16, asked: Option<u8>) -> Result<u8, PtConfigRefusal> {
    match asked {
        Some(value) if value < 16 && allowed >> value & 1 == 1 => Ok(value),
        Some(value) => Err(PtConfigRefusal::Encoding { field, value, allowed }),
        None if there && allowed != 0 => Ok(allowed.trailing_zeros() as u8),
        None => Ok(0),
    }
}
