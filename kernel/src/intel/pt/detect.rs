//! Checks that the PT unit really exists and is unused.
//!
//! First CPUID is checked, then the registers: a register that is not implemented raises #GP, or, on some virtual
//! machines, reads 0 and ignores writes.

use crate::intel::errata::Errata;
use crate::intel::pt::{Feature, PtCapabilities};
use crate::lifecycle::{self, Absent, InUse, Missing};
use crate::msr::{
    DebugCtl, DebugCtlLayout, DebugFlags, Msr, OutputMaskPtrs, Register, RtitCtl, TypedMsr, VmxMisc,
};

/// Checks that the unit that CPUID announces has working registers and is unused.
///
/// Writes IA32_RTIT_OUTPUT_MASK_PTRS and restores it.
///
/// # Errors
///
/// A register does not work, or the unit is in use.
pub(super) fn probe(msr: &mut impl Msr, capabilities: &PtCapabilities) -> Result<(), Absent> {
    if !capabilities.has(Feature::Topa) && !capabilities.has(Feature::SingleRange) {
        return Err(Missing::TraceOutput.into());
    }
    let ctl: RtitCtl = msr.read()?;
    if ctl.contains(RtitCtl::TRACE_EN) {
        return Err(InUse::ProcessorTrace { ctl }.into());
    }
    // SAFETY: without TraceEn this register makes the processor write to no memory.
    unsafe { lifecycle::probe(msr, OutputMaskPtrs::AT, |_| PATTERN, u64::MAX) }
}

/// The effect of VMX on a trace on this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmxTracing {
    /// The processor has no VMX.
    NoVmx,
    /// TraceEn may stay set in VMX operation.
    Allowed,
    /// VMXON clears TraceEn, and setting it in VMX operation raises #GP: a kernel must stop the trace before VMXON.
    ClearedByVmxon,
}

impl VmxTracing {
    /// Reads the effect of VMX. A processor on which IA32_VMX_MISC cannot be read is treated as
    /// [`VmxTracing::ClearedByVmxon`].
    pub fn read(msr: &mut impl Msr, capabilities: &PtCapabilities) -> Self {
        match capabilities.vmx.then(|| msr.read::<VmxMisc>()) {
            None => Self::NoVmx,
            Some(Ok(misc)) if misc.contains(VmxMisc::PT_IN_VMX) => Self::Allowed,
            Some(_) => Self::ClearedByVmxon,
        }
    }
}

/// Returns the other branch recorders that are on, if they and PT exclude each other. A processor without IA32_DEBUGCTL
/// has none.
pub(crate) fn other_recorder(msr: &mut impl Msr, capabilities: &PtCapabilities) -> Option<InUse> {
    if !capabilities.errata.contains(Errata::TRACE_EXCLUDES_BRANCH_RECORDS) {
        return None;
    }
    let DebugCtl(bits) = msr.read().ok()?;
    let control = bits & DebugCtlLayout::Ia32.bits(DebugFlags::RECORDERS);
    let in_use = InUse::BranchRecorder { address: DebugCtl::ADDRESS, control };
    (control != 0).then_some(in_use)
}

/// An offset and a mask that no reset produces.
const PATTERN: OutputMaskPtrs = OutputMaskPtrs::single_range(0xfff, 0x5a0);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeMsr, capabilities};
    use crate::lifecycle::NotBacked;

    #[test]
    fn finds_a_unit_that_answers_and_leaves_it_as_it_was() {
        let mut msr = FakeMsr::new();
        msr.set(0x561, 0x1_0000_007f);
        assert_eq!(probe(&mut msr, &capabilities()), Ok(()));
        assert_eq!(msr.get(0x561), 0x1_0000_007f);
        assert_eq!(msr.get(0x570), 0);
    }

    #[test]
    fn sees_registers_that_drop_what_is_written() {
        let mut msr = FakeMsr::new();
        msr.dead = true;
        let error = probe(&mut msr, &capabilities()).unwrap_err();
        assert_eq!(error, NotBacked { address: 0x561, written: 0x5a0_0000_0fff, read: 0 }.into());
    }

    #[test]
    fn sees_registers_that_fault() {
        for nth in 0..5 {
            let mut msr = FakeMsr::new();
            msr.fault_at = Some(nth);
            assert!(matches!(probe(&mut msr, &capabilities()), Err(Absent::Fault(_))), "access {nth}");
        }
    }

    #[test]
    fn refuses_a_unit_that_somebody_uses() {
        let mut msr = FakeMsr::new();
        msr.set(0x570, 0x2005);
        let error = probe(&mut msr, &capabilities()).unwrap_err();
        assert_eq!(error, InUse::ProcessorTrace { ctl: RtitCtl::from_bits_retain(0x2005) }.into());
        assert_eq!(msr.writes, []);
    }

    #[test]
    fn refuses_a_unit_without_output_to_memory() {
        let capabilities = PtCapabilities { ecx: 1 << 3, errata: Errata::empty(), ..capabilities() };
        assert_eq!(probe(&mut FakeMsr::new(), &capabilities), Err(Missing::TraceOutput.into()));
        for ecx in [1 << 0, 1 << 2] {
            assert_eq!(
                probe(&mut FakeMsr::new(), &PtCapabilities { ecx, ..capabilities }),
                Ok(()),
                "{ecx:#b}"
            );
        }
    }

    #[test]
    fn vmx_tracing_follows_cpuid_and_vmx_misc() {
        // (VMX, IA32_VMX_MISC, verdict)
        let table = [
            (false, 1 << 14, VmxTracing::NoVmx),
            (true, 1 << 14, VmxTracing::Allowed),
            (true, !(1 << 14), VmxTracing::ClearedByVmxon),
        ];
        for (vmx, misc, verdict) in table {
            let mut msr = FakeMsr::new();
            msr.set(0x485, misc);
            assert_eq!(VmxTracing::read(&mut msr, &PtCapabilities { vmx, ..capabilities() }), verdict);
        }
        let mut msr = FakeMsr::new();
        msr.fault_at = Some(0);
        let with_vmx = PtCapabilities { vmx: true, ..capabilities() };
        assert_eq!(VmxTracing::read(&mut msr, &with_vmx), VmxTracing::ClearedByVmxon);
    }

    #[test]
    fn sees_other_branch_recorders() {
        for (debugctl, on) in
            [(0, None), (1, Some(1)), (1 << 6, Some(1 << 6)), (1 << 7, Some(1 << 7)), (0x203e, None)]
        {
            let mut msr = FakeMsr::new();
            msr.set(0x1d9, debugctl);
            let with = |errata| PtCapabilities { errata, ..capabilities() };
            let excludes = with(Errata::TRACE_EXCLUDES_BRANCH_RECORDS);
            let in_use = on.map(|control| InUse::BranchRecorder { address: 0x1d9, control });
            assert_eq!(other_recorder(&mut msr, &excludes), in_use);
            // The same registers on a processor where both can be used together.
            assert_eq!(other_recorder(&mut msr, &with(Errata::empty())), None);
        }
    }
}
