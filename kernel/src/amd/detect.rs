//! The capabilities of an AMD processor, as CPUID reports them.

use crate::cpuid::CpuIdReader;
use crate::lifecycle::Missing;
use pugmark_decoder_core::ibs::{Caps, Part};
use raw_cpuid::CpuId;

/// The performance-monitoring units of an AMD processor.
///
/// Source: APM vol. 3, Obtaining Processor Information Via the CPUID Instruction, "Extended Feature Function Numbers".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdCapabilities {
    /// The displayed family: the extended family is added.
    pub family: u8,
    /// The displayed model, with the extended model.
    pub model: u8,
    /// Instruction Based Sampling, `CPUID.8000_0001H:ECX[10]`, and its capabilities, `CPUID.8000_001BH:EAX`.
    pub ibs: Option<Caps>,
    /// The number of counters of a core: 0 before family 6, then 4; 6 with [`AmdCapabilities::extended_counters`]; or
    /// `CPUID.8000_0022H:EBX[3:0]`.
    pub counters: u8,
    /// Counters at `C001_0200`, with event selects of 12 bits: `CPUID.8000_0001H:ECX[23]`.
    pub extended_counters: bool,
    /// Registers for global control and status: `CPUID.8000_0022H:EAX[0]`.
    pub perfmon_v2: bool,
    /// The number of branches that LBR version 2 keeps: `EBX[9:4]`; 0 without it: `CPUID.8000_0022H:EAX[1]`.
    pub lbr_v2: u8,
    /// True if a PMI can freeze LBR v2: `CPUID.8000_0022H:EAX[2]`.
    pub lbr_freeze: bool,
    /// The number of bits of a linear address: `CPUID.8000_0008H:EAX[15:8]`, or 48 if that is not enumerated.
    pub linear_address_bits: u8,
    /// Branch sampling, as on Zen 3: `CPUID.8000_0008H:EBX[31]`.
    pub branch_sampling: bool,
}

impl AmdCapabilities {
    /// Reads the capabilities.
    ///
    /// # Errors
    ///
    /// The processor is neither from AMD nor from Hygon, whose processors have AMD's design.
    pub fn read(cpuid: impl CpuIdReader) -> Result<Self, Missing> {
        let id = CpuId::with_cpuid_reader(cpuid.clone());
        let vendor = id.get_vendor_info();
        let is_amd = |vendor: &str| matches!(vendor, "AuthenticAMD" | "HygonGenuine");
        let signature = match (vendor.filter(|vendor| is_amd(vendor.as_str())), id.get_feature_info()) {
            (Some(_), Some(signature)) => signature,
            _ => return Err(Missing::Amd),
        };
        let highest = cpuid.cpuid1(0x8000_0000).eax;
        let leaf = |n: u32| (n <= highest).then(|| cpuid.cpuid1(n));
        let features = leaf(0x8000_0001).map_or(0, |leaf| leaf.ecx);
        let ibs =
            (features >> 10 & 1 == 1).then(|| Caps::from_eax(leaf(0x8000_001b).map_or(0, |leaf| leaf.eax)));
        let extended_counters = features >> 23 & 1 == 1;
        let (addresses, extended) = leaf(0x8000_0008).map_or((0, 0), |leaf| (leaf.eax, leaf.ebx));
        let (v2, counts) = leaf(0x8000_0022).map_or((0, 0), |leaf| (leaf.eax, leaf.ebx));
        let perfmon_v2 = v2 & 1 == 1;
        let counters = match (perfmon_v2, extended_counters) {
            // K6 and earlier.
            _ if signature.family_id() < 6 => 0,
            (true, _) => (counts & 0xf) as u8,
            (false, true) => 6,
            (false, false) => 4,
        };
        Ok(Self {
            family: signature.family_id(),
            model: signature.model_id(),
            ibs,
            counters,
            extended_counters,
            perfmon_v2,
            lbr_v2: if v2 >> 1 & 1 == 1 { (counts >> 4 & 0x3f) as u8 } else { 0 },
            lbr_freeze: v2 >> 2 & 1 == 1,
            linear_address_bits: match addresses >> 8 & 0xff {
                bits @ 32..=64 => bits as u8,
                _ => 48,
            },
            branch_sampling: extended >> 31 == 1,
        })
    }

    /// Returns the processor's description for decoding IBS samples.
    pub(crate) fn ibs_part(&self) -> Option<Part> {
        self.ibs.map(|caps| Part { family: self.family, model: self.model, caps })
    }
}
