//! Detects the debug store and its capabilities.
//!
//! The order of checks: CPUID, IA32_MISC_ENABLE, then that the registers keep the values written to them (emulators
//! read 0 everywhere).

use super::DsLayout;
use crate::cpuid::CpuIdReader;
use crate::intel::errata::Errata;
use crate::intel::pebs::PebsCapabilities;
use crate::lifecycle::{self, Absent, InUse, Missing};
use crate::msr::amd::Efer;
use crate::msr::{
    DebugCtl, DebugCtlLayout, DebugFlags, DsAreaBase, GeneralProtection, MiscEnable, Msr, Register, TypedMsr,
};
use raw_cpuid::CpuId;

/// The capabilities of this processor's debug store.
///
/// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features, "Detection of the
/// BTS Facilities", "BTS and DS Save Area", "64 Bit Format of the DS Save Area"; vol. 2, "CPUID".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsCapabilities {
    /// The layout of the register that turns branch trace messages on.
    pub(crate) control: DebugCtlLayout,
    /// The layout: 64-bit with DTES64 (`CPUID.1:ECX[2]`), and also without it if IA-32e mode is active.
    pub layout: DsLayout,
    /// True if the processor has BTS_OFF_OS and BTS_OFF_USR: `CPUID.1:ECX[4]` (DS-CPL).
    pub cpl_qualified: bool,
    /// True if the processor has the branch trace store: `IA32_MISC_ENABLE[11]` is 0.
    pub bts: bool,
    /// The capabilities of PEBS, or the reason why there is none.
    pub pebs: Result<PebsCapabilities, Missing>,
    /// True if the processor has Intel PT (`CPUID.07H.0:EBX[25]`), and PT excludes BTS while it traces on this model.
    pub(crate) processor_trace: bool,
    /// True if the processor has IA32_PERF_GLOBAL_STATUS: `CPUID.0AH:EAX[7:0]` is 2 or more.
    pub(crate) global_status: bool,
    /// The number of bits of a linear address: `CPUID.80000008H:EAX[15:8]`, or 48 if that is not enumerated.
    pub(crate) linear_address_bits: u8,
}

impl DsCapabilities {
    /// Detects the debug store of this processor.
    ///
    /// Writes IA32_DS_AREA and restores it, but only if nothing is being recorded.
    ///
    /// # Errors
    ///
    /// The debug store is absent, or another owner uses it.
    pub fn detect(cpuid: impl CpuIdReader, msr: &mut impl Msr) -> Result<Self, Absent> {
        let found = Self::read(cpuid, msr)?;
        found.probe(msr)?;
        Ok(found)
    }

    /// Reads the announced capabilities. Writes no register.
    pub(super) fn read(cpuid: impl CpuIdReader, msr: &mut impl Msr) -> Result<Self, Absent> {
        let id = CpuId::with_cpuid_reader(cpuid.clone());
        if id.get_vendor_info().is_none_or(|vendor| vendor.as_str() != "GenuineIntel") {
            return Err(Missing::Intel.into());
        }
        let features =
            id.get_feature_info().filter(|features| features.has_ds()).ok_or(Missing::DebugStore)?;
        let (family, model) = (features.family_id(), features.model_id());
        let control = DebugCtlLayout::of(family, model).ok_or(Missing::BranchStoreModel { family, model })?;
        let off: MiscEnable = msr.read()?;
        let bts = !off.contains(MiscEnable::BTS_UNAVAILABLE);
        let layout = match features.has_ds_area() || ia32e_mode(&id, msr)? {
            true => DsLayout::Bits64,
            false => DsLayout::Bits32,
        };
        let pebs = PebsCapabilities::detect(&cpuid, off, layout == DsLayout::Bits64, msr)?;
        match pebs {
            Err(pebs) if !bts => return Err(Absent::NothingToStore { misc_enable: off, pebs }),
            _ => {}
        }
        let bits = id.get_processor_capacity_feature_info().map(|addresses| addresses.linear_address_bits());
        Ok(Self {
            control,
            layout,
            cpl_qualified: features.has_cpl() && control.has(DebugFlags::BTS_OFF_OS),
            bts,
            pebs,
            processor_trace: id.get_extended_feature_info().is_some_and(|f| f.has_processor_trace())
                && Errata::of(family, model).contains(Errata::TRACE_EXCLUDES_BRANCH_RECORDS),
            global_status: id.get_performance_monitoring_info().is_some_and(|info| info.version_id() >= 2),
            // Some hypervisors report 0, which counts as not enumerated.
            linear_address_bits: bits.filter(|&bits| bits != 0).unwrap_or(48),
        })
    }

    /// Checks that nothing is recorded, and that the registers keep the values written to them.
    pub(super) fn probe(&self, msr: &mut impl Msr) -> Result<(), Absent> {
        probe(msr, self.control)
    }
}

/// Returns whether IA-32e mode is active.
fn ia32e_mode<R: CpuIdReader>(id: &CpuId<R>, msr: &mut impl Msr) -> Result<bool, GeneralProtection> {
    let there =
        id.get_extended_processor_and_feature_identifiers().is_some_and(|found| found.has_64bit_mode());
    Ok(there && msr.read::<Efer>()?.lma())
}

/// Checks that the registers keep the values written to them.
fn probe(msr: &mut impl Msr, control: DebugCtlLayout) -> Result<(), Absent> {
    let found: DebugCtl = msr.read()?;
    if control.flags(found).intersects(DebugFlags::RECORDERS) {
        return Err(InUse::BranchRecorder { address: DebugCtl::ADDRESS, control: found.0 }.into());
    }
    let DsAreaBase(area) = msr.read()?;
    if area != 0 {
        return Err(InUse::DebugStore { area }.into());
    }
    // SAFETY: branch trace messages are off, so nothing is written there.
    unsafe { lifecycle::probe(msr, DsAreaBase::AT, |_| PATTERN, u64::MAX) }
}

/// An address that is canonical with any width, and aligned to a cache line.
const PATTERN: DsAreaBase = DsAreaBase(0x5a5a_0fc0);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::CpuIdResult;
    use crate::fake::FakeMsr;
    use crate::lifecycle::NotBacked;

    const MISC_ENABLE: u32 = 0x1a0;
    const DS_AREA: u32 = 0x600;

    /// Returns the CPUID of a Nehalem with these bits of CPUID.1.
    fn cpuid(ecx: u32, edx: u32) -> impl CpuIdReader {
        signature(0x106a5, ecx, edx)
    }

    fn signature(eax: u32, ecx: u32, edx: u32) -> impl CpuIdReader {
        move |leaf, _| match leaf {
            0 => CpuIdResult { eax: 0xb, ebx: 0x756e_6547, edx: 0x4965_6e69, ecx: 0x6c65_746e },
            1 => CpuIdResult { eax, ebx: 0, ecx, edx },
            0xa => CpuIdResult { eax: 0x0730_0403, ebx: 0, ecx: 0, edx: 0x603 },
            _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        }
    }

    const DS: u32 = 1 << 21;
    const DTES64: u32 = 1 << 2;
    const DS_CPL: u32 = 1 << 4;
    const PDCM: u32 = 1 << 15;

    #[test]
    fn reads_what_cpuid_and_misc_enable_say() {
        // (ECX, MISC_ENABLE, layout, CPL, BTS, PEBS)
        let table = [
            (DTES64 | DS_CPL | PDCM, 1 << 7, DsLayout::Bits64, true, true, true),
            (0, 1 << 7, DsLayout::Bits32, false, true, false),
            (DTES64 | PDCM, 1 << 12 | 1 << 7, DsLayout::Bits64, false, true, false),
            (DTES64 | PDCM, 1 << 11 | 1 << 7, DsLayout::Bits64, false, false, true),
        ];
        for (ecx, misc, layout, cpl_qualified, bts, pebs) in table {
            let mut msr = FakeMsr::new();
            msr.set(MISC_ENABLE, misc);
            let found = DsCapabilities::detect(cpuid(ecx, DS), &mut msr).unwrap();
            assert_eq!(
                (found.layout, found.cpl_qualified, found.bts, found.pebs.is_ok()),
                (layout, cpl_qualified, bts, pebs),
                "{ecx:#x} {misc:#x}"
            );
            assert_eq!(msr.get(DS_AREA), 0);
        }
    }

    #[test]
    fn a_linear_address_has_the_bits_that_cpuid_tells_and_48_where_it_tells_none() {
        // (the highest extended leaf, CPUID.80000008H:EAX, bits)
        let table = [(0, 0, 48), (0x8000_0007, 0x3930, 48), (0x8000_0008, 0, 48)];
        for (highest, eax, bits) in
            table.into_iter().chain([(0x8000_0008, 0x3027, 48), (0x8000_0008, 0x3934, 57)])
        {
            let cpuid = |leaf, subleaf| match leaf {
                0x8000_0000 => CpuIdResult { eax: highest, ebx: 0, ecx: 0, edx: 0 },
                0x8000_0008 => CpuIdResult { eax, ebx: 0, ecx: 0, edx: 0 },
                _ => signature(0x106a5, DTES64, DS).cpuid2(leaf, subleaf),
            };
            let found = DsCapabilities::detect(cpuid, &mut FakeMsr::new()).unwrap();
            assert_eq!(found.linear_address_bits, bits, "{highest:#x} {eax:#x}");
        }
    }

    #[test]
    fn without_dtes64_the_mode_says_how_wide_fields_are() {
        const LMA: u64 = 1 << 10;
        // (CPUID.1:ECX, CPUID.80000001H:EDX, IA32_EFER, layout, IA32_EFER is read)
        let table = [
            (DTES64, 1 << 29, 0x500, DsLayout::Bits64, false),
            (0, 1 << 29, LMA | 0x101, DsLayout::Bits64, true),
            // IA-32e mode is enabled and not active.
            (0, 1 << 29, 0x100, DsLayout::Bits32, true),
            // There is neither IA-32e mode nor the register.
            (0, 0, LMA, DsLayout::Bits32, false),
        ];
        for (ecx, edx, efer, layout, reads) in table {
            let cpuid = |leaf, subleaf| match leaf {
                0x8000_0000 => CpuIdResult { eax: 0x8000_0008, ebx: 0, ecx: 0, edx: 0 },
                0x8000_0001 => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx },
                _ => signature(0x106a5, ecx, DS).cpuid2(leaf, subleaf),
            };
            let mut msr = FakeMsr::new();
            msr.set(0xc000_0080, efer);
            let found = DsCapabilities::detect(cpuid, &mut msr).unwrap();
            assert_eq!(found.layout, layout, "{ecx:#x} {edx:#x} {efer:#x}");
            assert_eq!(msr.reads.contains(&0xc000_0080), reads, "{ecx:#x} {edx:#x}");
        }
    }

    #[test]
    fn another_vendors_bit_is_no_debug_store() {
        let amd = |leaf, subleaf| match leaf {
            0 => CpuIdResult { eax: 0xb, ebx: 0x6874_7541, edx: 0x6974_6e65, ecx: 0x444d_4163 },
            _ => cpuid(DTES64, DS).cpuid2(leaf, subleaf),
        };
        let mut msr = FakeMsr::new();
        assert_eq!(DsCapabilities::detect(amd, &mut msr), Err(Missing::Intel.into()));
        assert_eq!((msr.reads.len(), msr.writes.len()), (0, 0));
    }

    #[test]
    fn says_what_is_missing() {
        let mut msr = FakeMsr::new();
        msr.set(MISC_ENABLE, 0x1800);
        let unavailable =
            Absent::NothingToStore { misc_enable: MiscEnable::from_bits_retain(0x1800), pebs: Missing::Pebs };
        assert_eq!(DsCapabilities::detect(cpuid(DTES64, DS), &mut msr), Err(unavailable));
        assert_eq!(
            DsCapabilities::detect(cpuid(DTES64, 0), &mut FakeMsr::new()),
            Err(Missing::DebugStore.into())
        );
        let old = signature(0x68a, 0, DS);
        let family = Missing::BranchStoreModel { family: 6, model: 8 }.into();
        assert_eq!(DsCapabilities::detect(old, &mut FakeMsr::new()), Err(family));
    }

    #[test]
    fn sees_an_emulator_that_reads_zero_everywhere() {
        let mut msr = FakeMsr::new();
        msr.dead = true;
        let error = DsCapabilities::detect(cpuid(DTES64, DS), &mut msr).unwrap_err();
        assert_eq!(error, NotBacked { address: DS_AREA, written: PATTERN.0, read: 0 }.into());
    }

    #[test]
    fn sees_registers_that_fault() {
        for nth in 0..7 {
            let mut msr = FakeMsr::new();
            msr.set(MISC_ENABLE, 1 << 7);
            msr.fault_at = Some(nth);
            let error = DsCapabilities::detect(cpuid(DTES64 | PDCM, DS), &mut msr);
            assert!(matches!(error, Err(Absent::Fault(_))), "access {nth}: {error:?}");
        }
    }

    #[test]
    fn refuses_what_somebody_uses() {
        for on in [1 << 0, 1 << 6, 1 << 7] {
            let mut msr = FakeMsr::new();
            msr.set(0x1d9, on);
            let error = DsCapabilities::detect(cpuid(DTES64, DS), &mut msr);
            assert_eq!(error, Err(InUse::BranchRecorder { address: 0x1d9, control: on }.into()));
            assert_eq!(msr.writes, []);
        }
        let mut msr = FakeMsr::new();
        msr.set(DS_AREA, 0x1000);
        let error = DsCapabilities::detect(cpuid(DTES64, DS), &mut msr);
        assert_eq!(error, Err(InUse::DebugStore { area: 0x1000 }.into()));
    }
}
