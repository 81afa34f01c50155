//! IA32_VMX_MISC, reduced to the bit that concerns the trace.

use bitflags::bitflags;

bitflags! {
    /// IA32_VMX_MISC (`0x485`): read only; it exists if CPUID.1:ECX[5] (VMX) is 1.
    ///
    /// Scope: logical processor. Source: SDM vol. 3, VMX Capability Reporting Facility, "Miscellaneous Data".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct VmxMisc: u64 {
        /// TraceEn may be 1 in VMX operation. Otherwise VMXON clears it, and setting it in VMX operation is #GP(0).
        const PT_IN_VMX = 1 << 14;
    }
}

flags! {
    VmxMisc = 0x485,
}
