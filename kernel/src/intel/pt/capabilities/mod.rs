//! The capabilities of the PT unit, as CPUID reports them.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Detection of Intel Processor Trace and Capability Enumeration";
//! vol. 2, "CPUID".

#[cfg(test)]
mod tests;

use super::{CpuidRegister, Feature};
use crate::cpuid::{CpuIdReader, CpuIdResult, this_processor};
use crate::intel::errata::Errata;
use crate::lifecycle::Missing;
use pugmark_decoder_core::errata::{Cpu, Vendor};
use raw_cpuid::CpuId;

/// The capabilities of this processor's PT unit, with other properties of the processor that a trace needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtCapabilities {
    /// `CPUID.14H.0:EBX`, with all bits, also those without a [`Feature`].
    pub ebx: u32,
    /// `CPUID.14H.0:ECX`, with all bits, also those without a [`Feature`].
    pub ecx: u32,
    /// The number of address ranges, 0 to 4: `CPUID.14H.1:EAX[2:0]`.
    pub address_ranges: u8,
    /// Bit n is set if MTCFreq may be n. `CPUID.14H.1:EAX[31:16]`.
    pub mtc_freqs: u16,
    /// Bit n is set if CycThresh may be n. `CPUID.14H.1:EBX[15:0]`.
    pub cyc_thresholds: u16,
    /// Bit n is set if PSBFreq may be n. `CPUID.14H.1:EBX[31:16]`.
    pub psb_freqs: u16,
    /// The triggers, with [`Feature::TriggerTracing`]. This driver does not program them.
    pub triggers: Option<Triggers>,
    /// MAXPHYADDR: `CPUID.80000008H:EAX[7:0]`, or 36 if that is not enumerated.
    pub physical_address_bits: u8,
    /// The number of bits of a linear address: `CPUID.80000008H:EAX[15:8]`, or 48 if that is not enumerated.
    pub linear_address_bits: u8,
    /// The ratio of the time-stamp counter to the crystal clock: `CPUID.15H`.
    pub tsc_ratio: Option<TscRatio>,
    /// The processor's base frequency in MHz: `CPUID.16H:EAX[15:0]`.
    pub base_mhz: Option<u16>,
    /// The bus (reference) frequency in MHz: `CPUID.16H:ECX[15:0]`.
    pub bus_mhz: Option<u16>,
    /// True if the time-stamp counter runs at one rate in all power states: `CPUID.80000007H:EDX[8]`.
    pub invariant_tsc: bool,
    /// The processor by vendor, family, model and stepping: `CPUID.0` and `CPUID.1:EAX`.
    pub cpu: Cpu,
    /// True if the processor has VMX: `CPUID.1:ECX[5]`.
    pub vmx: bool,
    /// The errata and restrictions of this model.
    pub(crate) errata: Errata,
}

/// The capabilities of trigger tracing.
///
/// Source: SDM vol. 2, CPUID, leaf 14H, sub-leaf 1, as programs that print CPUID have it. Each of the registers
/// IA32_RTIT_TRIGGERx_CFG has the inputs and actions of four triggers; their addresses were in no source at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggers {
    /// The number of IA32_RTIT_TRIGGERx_CFG, of four triggers each: `CPUID.14H.1:EAX[10:8]`.
    pub registers: u8,
    /// True if a TRIG packet can say which trigger fired: `CPUID.14H.1:ECX[0]`.
    pub attribution: bool,
    /// True if triggers can pause and resume the trace: `CPUID.14H.1:ECX[1]`.
    pub pause: bool,
    /// True if the debug registers DR0 to DR3 can be triggers: `CPUID.14H.1:ECX[15]`.
    pub breakpoints: bool,
}

/// `CPUID.15H`: TSC ticks = crystal ticks × numerator / denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscRatio {
    /// EBX; not 0.
    pub numerator: u32,
    /// EAX; not 0.
    pub denominator: u32,
    /// ECX: the crystal's frequency in Hz, if it is enumerated.
    pub crystal_hz: Option<u32>,
}

impl PtCapabilities {
    /// Reads the capabilities of this processor.
    ///
    /// # Errors
    ///
    /// As for [`PtCapabilities::read`].
    pub fn of_this_processor() -> Result<Self, Missing> {
        Self::read(this_processor)
    }

    /// Reads the capabilities with the given CPUID function.
    ///
    /// # Errors
    ///
    /// The processor has no PT.
    pub fn read(cpuid: impl CpuIdReader) -> Result<Self, Missing> {
        let highest = cpuid.cpuid1(0).eax;
        // Leaf 7 decides: if it enumerates no PT, that is the reason to report, whatever other leaves there are.
        if highest >= FEATURE_LEAF && cpuid.cpuid2(FEATURE_LEAF, 0).ebx >> 25 & 1 == 0 {
            return Err(Missing::ProcessorTrace);
        }
        if highest < PT_LEAF {
            return Err(Missing::ProcessorTraceLeaf { highest });
        }
        let main = cpuid.cpuid2(PT_LEAF, 0);
        let sub = if main.eax >= 1 { cpuid.cpuid2(PT_LEAF, 1) } else { ZERO };
        let signature_bits = cpuid.cpuid1(1).eax;
        let id = CpuId::with_cpuid_reader(cpuid);
        let vendor = match id.get_vendor_info().is_some_and(|vendor| vendor.as_str() == "GenuineIntel") {
            true => Vendor::Intel,
            false => Vendor::Other,
        };
        let frequency = id.get_processor_frequency_info();
        let addresses = id.get_processor_capacity_feature_info();
        let signature = id.get_feature_info();
        Ok(Self {
            ebx: main.ebx,
            ecx: main.ecx,
            address_ranges: (sub.eax & 0x7).min(4) as u8,
            mtc_freqs: (sub.eax >> 16) as u16,
            cyc_thresholds: sub.ebx as u16,
            psb_freqs: (sub.ebx >> 16) as u16,
            triggers: (main.ebx >> Feature::TriggerTracing.field().low & 1 == 1).then_some(Triggers {
                registers: (sub.eax >> 8 & 0x7) as u8,
                attribution: sub.ecx & 1 << 0 != 0,
                pause: sub.ecx & 1 << 1 != 0,
                breakpoints: sub.ecx & 1 << 15 != 0,
            }),
            physical_address_bits: width(addresses.as_ref().map(|a| a.physical_address_bits()), 36),
            linear_address_bits: width(addresses.as_ref().map(|a| a.linear_address_bits()), 48),
            tsc_ratio: id.get_tsc_info().and_then(|tsc| {
                (tsc.numerator() != 0 && tsc.denominator() != 0).then(|| TscRatio {
                    numerator: tsc.numerator(),
                    denominator: tsc.denominator(),
                    crystal_hz: Some(tsc.nominal_frequency()).filter(|&hz| hz != 0),
                })
            }),
            base_mhz: frequency.as_ref().map(|f| f.processor_base_frequency()).filter(|&mhz| mhz != 0),
            bus_mhz: frequency.as_ref().map(|f| f.bus_frequency()).filter(|&mhz| mhz != 0),
            invariant_tsc: id.get_advanced_power_mgmt_info().is_some_and(|power| power.has_invariant_tsc()),
            cpu: Cpu { vendor, ..Cpu::from_signature(signature_bits) },
            vmx: signature.as_ref().is_some_and(|s| s.has_vmx()),
            errata: signature.map_or(Errata::empty(), |s| Errata::of(s.family_id(), s.model_id())),
        })
    }

    /// Returns whether the processor has this feature.
    #[must_use]
    pub const fn has(&self, feature: Feature) -> bool {
        let field = feature.field();
        let register = match field.register {
            CpuidRegister::Ebx => self.ebx,
            CpuidRegister::Ecx => self.ecx,
            CpuidRegister::Eax => return false,
        };
        register >> field.low & 1 == 1
    }

    /// Returns the first physical address that the unit cannot reach.
    #[must_use]
    pub(crate) const fn physical_limit(&self) -> u64 {
        // The x86-64 architecture has at most 52 bits; a nonsense value must not overflow the shift.
        let bits = if self.physical_address_bits > 52 { 52 } else { self.physical_address_bits };
        1 << bits
    }
}

const PT_LEAF: u32 = 0x14;
/// The leaf that enumerates PT.
const FEATURE_LEAF: u32 = 7;
const ZERO: CpuIdResult = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

/// Returns the enumerated address width; 0, which some hypervisors report, counts as not enumerated.
fn width(enumerated: Option<u8>, otherwise: u8) -> u8 {
    enumerated.filter(|&bits| bits != 0).unwrap_or(otherwise)
}
