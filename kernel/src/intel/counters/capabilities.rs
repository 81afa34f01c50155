//! Reads what the counters can do.

use super::extended::{self, SubLeaf};
use super::registers::microcode_counters;
use super::{IntelCounterFeature, IntelEvent};
use crate::cpuid::CpuIdReader;
use crate::intel::errata::Errata;
use crate::intel::lbr::Architectural;
use crate::lifecycle::{Absent, Missing};
use crate::msr::{Counter, CounterAddresses, FixedCtrCtrl, MiscEnable, Msr, TypedMsr};
use raw_cpuid::CpuId;

/// The number of general-purpose counters that a processor has at most: they have a bit each in `CPUID.23H.1:EAX`.
pub(super) const GENERAL: u8 = 32;
/// The number of fixed-function counters that this driver uses at most: IA32_FIXED_CTR_CTRL has all fields of them.
pub(super) const FIXED: u8 = FixedCtrCtrl::COUNTERS;

/// The capabilities of this processor's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntelCounterCapabilities {
    /// The general-purpose counters, a bit for each: `CPUID.23H.1:EAX`, or `CPUID.0AH:EAX[15:8]`; without those that
    /// microcode uses, and before version 6 eight at most.
    pub general: u32,
    /// The width of a general-purpose counter in bits: `CPUID.0AH:EAX[23:16]`.
    pub general_bits: u8,
    /// The fixed-function counters, a bit for each of the first eight: `CPUID.23H.1:EBX`, or `CPUID.0AH:EDX[4:0]`, and
    /// `CPUID.0AH:ECX` since version 5.
    pub fixed: u8,
    /// The width of a fixed-function counter in bits: `CPUID.0AH:EDX[12:5]`.
    pub fixed_bits: u8,
    /// True if events have a second unit mask: `CPUID.23H.0:EBX[0]`.
    pub unit_mask_2: bool,
    /// True if cycles with exactly so many events can be counted: `CPUID.23H.0:EBX[1]`.
    pub equal: bool,
    /// True if counters can be hidden from RDPMC above CPL 0: `CPUID.23H.0:EBX[2]`.
    pub rdpmc_user_disable: bool,
    /// The counters that an overflow can reload, by their bits in IA32_PERF_GLOBAL_CTRL: `CPUID.23H.2:EAX` and EBX.
    pub reloadable: u64,
    /// The counters whose overflow can reload others: `CPUID.23H.2:ECX` and EDX.
    pub reload_causes: u64,
    /// The general-purpose counters whose events last branch records count, a bit for each: `CPUID.1CH:ECX[19:16]`.
    pub branch_records: u8,
    /// The architectural events that do not exist, a bit for each: `CPUID.0AH:EBX`, with the bits above its length.
    unavailable: u32,
    /// True if IA32_PERF_GLOBAL_INUSE exists: `CPUID.0AH:EAX[7:0]` is 4 or more.
    pub(crate) global_in_use: bool,
    /// True if the model has the errata of [`Errata::COUNTERS_NEED_CLEARING`].
    pub(super) need_clearing: bool,
    pub(crate) addresses: CounterAddresses,
}

impl IntelCounterCapabilities {
    /// Reads the capabilities. Writes no register.
    ///
    /// # Errors
    ///
    /// The processor is not Intel's, has no counters, or none that IA32_PERF_GLOBAL_CTRL turns on; or an access raised
    /// #GP.
    pub fn read(cpuid: impl CpuIdReader, msr: &mut impl Msr) -> Result<Self, Absent> {
        let id = CpuId::with_cpuid_reader(cpuid.clone());
        if id.get_vendor_info().is_none_or(|vendor| vendor.as_str() != "GenuineIntel") {
            return Err(Missing::Intel.into());
        }
        let leaf = match cpuid.cpuid1(0).eax {
            0xa.. => cpuid.cpuid2(0xa, 0),
            _ => return Err(Missing::GlobalCtrl { version: 0 }.into()),
        };
        let [version, number, general_bits, events] = leaf.eax.to_le_bytes();
        if version < 2 {
            return Err(Missing::GlobalCtrl { version }.into());
        }
        let misc_enable: MiscEnable = msr.read()?;
        if !misc_enable.contains(MiscEnable::PERFORMANCE_MONITORING) {
            return Err(Missing::PerformanceMonitoring.into());
        }
        let addresses = CounterAddresses::of_version(version);
        let more = if version >= 5 { leaf.ecx } else { 0 };
        let counted = (first(number), first((leaf.edx & 0x1f) as u8) | more);
        let (general, fixed) =
            extended::read(&cpuid, SubLeaf::Counters).map_or(counted, |leaf| (leaf.eax, leaf.ebx));
        let reachable = match addresses {
            CounterAddresses::ByKind => 0xff,
            CounterAddresses::ByCounter => u32::MAX,
        };
        let general = general & reachable & !u32::from(microcode_counters(&cpuid, msr));
        let fixed = fixed as u8;
        if general == 0 && fixed == 0 {
            return Err(Missing::Counters.into());
        }
        let features = id.get_feature_info();
        let errata = features.map_or(Errata::empty(), |it| Errata::of(it.family_id(), it.model_id()));
        let beyond = u32::MAX.checked_shl(events.into()).unwrap_or(0);
        let fields = extended::read(&cpuid, SubLeaf::Main).map_or(0, |leaf| leaf.ebx);
        // The registers of auto counter reload are among the addresses of version 6.
        let reload = extended::read(&cpuid, SubLeaf::Reload).filter(|_| version >= 6);
        let both = |general: u32, fixed: u32| u64::from(general) | u64::from(fixed) << 32;
        Ok(Self {
            general,
            general_bits,
            fixed,
            fixed_bits: (leaf.edx >> 5) as u8,
            unit_mask_2: fields & 1 << 0 != 0,
            equal: fields & 1 << 1 != 0,
            rdpmc_user_disable: fields & 1 << 2 != 0,
            reloadable: reload.map_or(0, |leaf| both(leaf.eax, leaf.ebx)),
            reload_causes: reload.map_or(0, |leaf| both(leaf.ecx, leaf.edx)),
            branch_records: Architectural::read(&cpuid).map_or(0, |leaf| leaf.event_counters()),
            unavailable: leaf.ebx | beyond,
            global_in_use: version >= 4,
            need_clearing: errata.contains(Errata::COUNTERS_NEED_CLEARING),
            addresses,
        })
    }

    /// Returns whether the processor has this feature.
    #[must_use]
    pub const fn has_feature(&self, feature: IntelCounterFeature) -> bool {
        match feature {
            IntelCounterFeature::UnitMask2 => self.unit_mask_2,
            IntelCounterFeature::Equal => self.equal,
            IntelCounterFeature::RdpmcUserDisable => self.rdpmc_user_disable,
            IntelCounterFeature::BranchRecords => self.branch_records != 0,
            IntelCounterFeature::AutoReload => self.reloadable != 0 && self.reload_causes != 0,
        }
    }

    /// Returns the width of a counter in bits.
    pub(crate) const fn bits(&self, counter: Counter) -> u8 {
        match counter {
            Counter::General(_) => self.general_bits,
            Counter::Fixed(_) => self.fixed_bits,
        }
    }

    /// Returns whether the processor has this event. Events that are not architectural depend on the model, and are
    /// assumed to exist.
    #[must_use]
    pub const fn has(&self, event: &IntelEvent) -> bool {
        match event.architectural() {
            Some(bit) => self.unavailable >> bit & 1 == 0,
            None => true,
        }
    }
}

/// Returns the bits of the first `number` counters.
const fn first(number: u8) -> u32 {
    match number {
        GENERAL.. => u32::MAX,
        _ => (1 << number) - 1,
    }
}
