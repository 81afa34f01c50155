//! Access to the processor's registers and its local APIC, for the driver.

use core::ptr::NonNull;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::lapic::{LocalApic, LvtPc, X2Apic, XApic};
use pugmark_kernel::msr::GeneralProtection;

use super::apic;

/// Returns this processor's MSRs.
pub(crate) fn msr() -> GuardedMsr {
    // SAFETY: this is CPL 0, the #GP handler obeys `fixup`, and nothing moves from one processor to another.
    unsafe { GuardedMsr::new() }
}

/// Returns this processor's local APIC, in the mode that [`apic::init`] has set.
pub(crate) fn local_apic() -> Apic {
    if apic::is_x2apic() { Apic::X2(X2Apic::new(msr())) } else { Apic::Page(local_apic_page()) }
}

/// Returns the page of this processor's local APIC, for registers that have no MSR.
pub(crate) fn local_apic_page() -> XApic {
    let base = NonNull::without_provenance(apic::ADDRESS);
    // SAFETY: the local APIC's page is always mapped there, writable and uncached, and `apic::init` has checked the
    // mode.
    unsafe { XApic::new(base) }
}

/// A local APIC in either mode.
pub(crate) enum Apic {
    Page(XApic),
    X2(X2Apic<GuardedMsr>),
}

// SAFETY: each is the local APIC of the processor that executes this.
unsafe impl LocalApic for Apic {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        match self {
            Self::Page(apic) => apic.is_enabled(),
            Self::X2(apic) => apic.is_enabled(),
        }
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        match self {
            Self::Page(apic) => apic.lvt_pc(),
            Self::X2(apic) => apic.lvt_pc(),
        }
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        match self {
            // SAFETY: the caller promises it.
            Self::Page(apic) => unsafe { apic.set_lvt_pc(entry) },
            // SAFETY: as above.
            Self::X2(apic) => unsafe { apic.set_lvt_pc(entry) },
        }
    }
}
