//! The effects of VM entries and VM exits on Intel PT and IA32_DEBUGCTL.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "VMX-Specific Packets and VMCS Controls", "Guest-Only Tracing", "Packet
//! Generation under Different Enable Conditions" (VM entry, VM exit), "VMCS Packet"; VM Entries, "Checks on VMX
//! Controls"; VM Exits, "Loading Host Control Registers, Debug Registers, MSRs" (IA32_DEBUGCTL is cleared).

#[cfg(test)]
mod tests;

use super::IntelProcessor;
use crate::intel::unit::Bus;
use crate::{Context, CpuidResult, GeneralProtection, PhysMemory, Retired};

/// IA32_VMX_MISC, and its bit 14: TraceEn may be set in VMX operation.
pub(super) const IA32_VMX_MISC: u32 = 0x485;
pub(super) const PT_IN_VMX: u64 = 1 << 14;

/// A VM entry or a VM exit.
#[derive(Clone, Copy, Debug)]
pub struct VmxTransition {
    /// The state before the transition. `ip` is the address of the next instruction that would execute.
    pub before: Context,
    /// The state after the transition.
    pub after: Context,
    /// The time-stamp counter.
    pub tsc: u64,
    /// The value loaded into IA32_RTIT_CTL: by an MSR-load list, by the VM-entry control "load IA32_RTIT_CTL", or 0 by
    /// the VM-exit control "clear IA32_RTIT_CTL".
    pub rtit_ctl: Option<u64>,
    /// The control "conceal VMX from PT": no PIP shows the transition, and in the guest neither PIP.NR nor VMCS packets
    /// show VMX.
    pub concealed: bool,
}

/// Adds VMX to the processor's features.
pub(super) const fn with_vmx(leaf: u32, answer: CpuidResult) -> CpuidResult {
    match leaf {
        1 => CpuidResult { ecx: answer.ecx | 1 << 5, ..answer },
        _ => answer,
    }
}

impl IntelProcessor {
    /// Makes the processor enumerate VMX, with Intel PT in VMX operation. The caller then reports VM entries and VM
    /// exits by the methods below; other units than Intel PT ignore them, except that a VM exit clears IA32_DEBUGCTL
    /// and so stops its functions.
    #[must_use]
    pub fn with_vmx(mut self) -> Self {
        self.vmx = true;
        self
    }

    /// Reports a VM entry.
    ///
    /// # Errors
    ///
    /// If the VM entry fails: it would load IA32_RTIT_CTL while TraceEn is set, or the register rejects the value.
    pub fn vm_entry(
        &mut self,
        entry: &VmxTransition,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection> {
        if entry.rtit_ctl.is_some() && self.pt.traces() {
            return Err(GeneralProtection);
        }
        self.vmx_transition(entry, true, mem)
    }

    /// Reports a VM exit, which clears IA32_DEBUGCTL.
    ///
    /// # Errors
    ///
    /// If IA32_RTIT_CTL rejects the value.
    pub fn vm_exit(
        &mut self,
        exit: &VmxTransition,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection> {
        self.vmx_transition(exit, false, mem)?;
        self.shared.debugctl.clear();
        Ok(())
    }

    /// Reports a VMPTRLD that succeeds, before it retires: a VMCS packet has the address, and so has each PSB+ from now
    /// on. `at` is the state before it.
    pub fn vmptrld(&mut self, base: u64, at: &Context, tsc: u64, mem: &mut dyn PhysMemory) {
        self.pt.load_vmcs(base, at, tsc, &mut Bus { mem, shared: &mut self.shared });
    }

    /// Reports a VMCLEAR of the current VMCS.
    pub fn vmclear_current(&mut self) {
        self.pt.forget_vmcs(true);
    }

    /// Reports VMXOFF.
    pub fn vmxoff(&mut self) {
        self.pt.forget_vmcs(false);
    }

    fn vmx_transition(
        &mut self,
        transition: &VmxTransition,
        entry: bool,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection> {
        let &VmxTransition { before, after, tsc, rtit_ctl, concealed } = transition;
        let bus = &mut Bus { mem, shared: &mut self.shared };
        match rtit_ctl {
            // The rules and packets of WRMSR, at the guest's address.
            Some(value) => {
                let at = Retired { before, after, bytes: &[], tsc, operand: 0 };
                self.pt.load_ctl(value, (entry, concealed), &at, bus)?;
            }
            None => self.pt.vmx_transition(&before, &after, tsc, (entry, concealed), bus),
        }
        self.last_ip = before.ip;
        Ok(())
    }
}
