//! The processor's registers: its MSRs, whose faults the kernel's #GP handler turns into errors, and its local APIC.

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use pugmark_kernel::arch::{GuardedMsr, Interrupted, fixup};
use pugmark_kernel::lapic::{LocalApic, LvtPc, X2Apic, XApic};
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi;

use crate::outcome::{ERROR_ARGUMENT, OK};

/// The bytes of stack that the NMI handler needs, without those of the kernel's own functions.
pub const HANDLER_STACK: usize = 16 << 10;
const _: () = assert!(HANDLER_STACK >= pmi::HANDLER_STACK);

/// The page of the local APIC; null in x2APIC mode.
static LOCAL_APIC: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Names the page at which the local APIC is mapped on all processors, or null for x2APIC mode. Returns an error if it
/// is no page's address.
///
/// # Safety
///
/// The page is mapped there, uncached, on each processor that traces, and stays there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pugmark_use_local_apic(page: *mut c_void) -> c_int {
    if !page.addr().is_multiple_of(4096) {
        return ERROR_ARGUMENT;
    }
    LOCAL_APIC.store(page, Ordering::Release);
    OK
}

/// The local APIC, in either mode.
#[derive(Debug)]
pub(crate) enum EitherApic {
    Page(XApic),
    Registers(X2Apic<GuardedMsr>),
}

/// Returns the registers of this processor.
pub(crate) fn processor() -> (GuardedMsr, EitherApic) {
    (
        msr(),
        match NonNull::new(LOCAL_APIC.load(Ordering::Acquire)) {
            // SAFETY: the kernel has mapped the page there.
            Some(page) => EitherApic::Page(unsafe { XApic::new(page.cast()) }),
            None => EitherApic::Registers(X2Apic::new(msr())),
        },
    )
}

/// Returns the MSRs of this processor.
pub(crate) fn msr() -> GuardedMsr {
    // SAFETY: the kernel calls at CPL 0, with its thread bound to the processor. A #GP handler that does not call
    // `pugmark_general_protection` treats the fault as any other.
    unsafe { GuardedMsr::new() }
}

// SAFETY: both forward each call to the local APIC of this processor.
unsafe impl LocalApic for EitherApic {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        match self {
            Self::Page(apic) => apic.is_enabled(),
            Self::Registers(apic) => apic.is_enabled(),
        }
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        match self {
            Self::Page(apic) => apic.lvt_pc(),
            Self::Registers(apic) => apic.lvt_pc(),
        }
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        match self {
            // SAFETY: the caller promises the same.
            Self::Page(apic) => unsafe { apic.set_lvt_pc(entry) },
            // SAFETY: as above.
            Self::Registers(apic) => unsafe { apic.set_lvt_pc(entry) },
        }
    }
}

/// Ends the #GP handler if an access of the driver faulted at `rip`: the access continues as an error. Returns if the
/// fault is another one.
///
/// # Safety
///
/// The registers are those that the #GP interrupted, and the handler fulfils the requirements of [`GuardedMsr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pugmark_general_protection(rip: u64, interrupted: *const Interrupted) {
    let Some(fixup) = fixup(rip).filter(|_| !interrupted.is_null() && interrupted.is_aligned()) else {
        return;
    };
    // SAFETY: aligned, not null, and valid by the caller's promise.
    let interrupted = unsafe { &*interrupted };
    // SAFETY: the caller promises it.
    unsafe { fixup.resume(interrupted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of a local APIC, as numbers of 32 bits.
    #[repr(align(4096))]
    struct Page(#[allow(dead_code, reason = "memory")] [u32; 1024]);

    #[test]
    fn the_local_apic_is_at_the_page_that_the_kernel_names() {
        let mut page = Page([0; 1024]);
        let place = &raw mut page;
        let register = |offset: usize| place.cast::<u32>().wrapping_add(offset / 4);
        // SAFETY: the page is there as long as this test uses it.
        assert_eq!(unsafe { pugmark_use_local_apic(place.cast()) }, OK);
        let (_, mut apic) = processor();
        assert_eq!(apic.is_enabled(), Ok(false));
        // SAFETY: the spurious-interrupt vector register, in memory of this test.
        unsafe { register(0xf0).write_volatile(0x1ff) };
        assert_eq!(apic.is_enabled(), Ok(true));
        // SAFETY: it is masked, and no processor's.
        assert_eq!(unsafe { apic.set_lvt_pc(LvtPc(LvtPc::MASK)) }, Ok(()));
        assert_eq!(apic.lvt_pc(), Ok(LvtPc(LvtPc::MASK)));
        // SAFETY: memory of this test.
        assert_eq!(unsafe { register(0x340).read_volatile() }, LvtPc::MASK);
        // SAFETY: as above.
        assert_eq!(unsafe { pugmark_use_local_apic(null_mut()) }, OK);
        assert!(matches!(processor().1, EitherApic::Registers(_)));
    }
}
