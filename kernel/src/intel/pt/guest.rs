//! Traces of guests: VMX non-root operation.

use super::session::PtSession;
use super::{PtRunning, PtState};
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr, RtitCtl};
use crate::pmi::Abandoned;

impl<M: Msr, F: Frames> PtRunning<M, F> {
    /// Runs a guest with this trace. A suspended trace contains guests alone; one that is not suspended contains the
    /// host, too, with a PSB at each change.
    ///
    /// `run` enters the guest, and returns after the VM exit. Its argument is the value for IA32_RTIT_CTL in the guest:
    /// 0 if nothing can be traced, because the memory is full. A hypervisor
    ///
    /// - puts this value in the VMCS's guest field of that name, with the VM-entry control "load IA32_RTIT_CTL" and the
    ///   VM-exit control "clear IA32_RTIT_CTL";
    /// - or, if the processor lacks these, in an entry of the VM-entry MSR-load list, with an entry of 0 in the VM-exit
    ///   MSR-load list;
    /// - sets "NMI exiting", or "external-interrupt exiting", by the delivery of PMIs: a PMI ends the guest, and is
    ///   served when the call has returned (with a [`Slot`](crate::slot::Slot), when the slot is released);
    /// - keeps the guest from this unit's registers (the MSR bitmaps), and CPUID from announcing it.
    ///
    /// Where [`vmx_tracing`](PtRunning::vmx_tracing) is [`ClearedByVmxon`](super::VmxTracing::ClearedByVmxon) a guest
    /// cannot be traced: the call reports a fault.
    ///
    /// The packets have the guest's linear addresses, and decode over the guest's code. The VMCS's "conceal VMX from
    /// PT" decides if PIP packets show the guest (NR).
    ///
    /// ```
    /// use pugmark_kernel::intel::pt::{PtRunning, PtState};
    /// use pugmark_kernel::{memory::Frames, msr::Msr};
    ///
    /// /// Runs a guest until something else than a PMI ends it; `enter` takes the value for IA32_RTIT_CTL and returns
    /// /// whether it was a PMI, which the NMI handler has served meanwhile.
    /// fn run_traced<M: Msr, F: Frames>(trace: &mut PtRunning<M, F>, mut enter: impl FnMut(u64) -> bool) {
    ///     loop {
    ///         let (by_pmi, state) = trace.trace_guest(|ctl| enter(ctl.bits()));
    ///         if !by_pmi || state != Ok(PtState::Suspended) {
    ///             return;
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "Guest-Only Tracing", "VMX-Specific Packets and VMCS Controls"; VM
    /// Entries, "Checks on VMX Controls".
    ///
    /// # Errors
    ///
    /// `run` has been called in any case: its result is returned beside the state, or the fault. If registers could not
    /// be written before it, its argument was 0. A fault after it is reported as in [`PtRunning::drain`].
    pub fn trace_guest<R>(
        &mut self,
        run: impl FnOnce(RtitCtl) -> R,
    ) -> (R, Result<PtState, GeneralProtection>) {
        self.with(|session| {
            let admitted = admit(session);
            let result = run(admitted.unwrap_or(RtitCtl::empty()));
            (result, admitted.and_then(|_| leave(session)))
        })
    }
}

fn admit<M: Msr, F: Frames>(session: &mut PtSession<M, F>) -> Result<RtitCtl, GeneralProtection> {
    let halted = session.halt_and_collect()?;
    session.admit_guest(halted).inspect_err(|&fault| session.leave_off(Abandoned::Fault(fault)))
}

/// Clears TraceEn if the VM exit has not, and reads the position at the end of the guest.
fn leave<M: Msr, F: Frames>(session: &mut PtSession<M, F>) -> Result<PtState, GeneralProtection> {
    let halted = session.halt_and_collect()?;
    session.leave_guest(halted).inspect_err(|&fault| session.leave_off(Abandoned::Fault(fault)))?;
    Ok(session.state())
}
