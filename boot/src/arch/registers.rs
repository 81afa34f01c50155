//! Access to the processor's registers and its local APIC, for the driver.

use core::ptr::NonNull;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::lapic::XApic;

use super::apic;

/// This processor's MSRs.
pub(crate) fn msr() -> GuardedMsr {
    // SAFETY: this is CPL 0, the #GP handler obeys `fixup`, and nothing moves from one processor to another.
    unsafe { GuardedMsr::new() }
}

/// This processor's local APIC.
pub(crate) fn local_apic() -> XApic {
    let base = NonNull::without_provenance(apic::ADDRESS);
    // SAFETY: the local APIC's page is always mapped there, writable and uncached, and `apic::init` has checked the
    // mode.
    unsafe { XApic::new(base) }
}
