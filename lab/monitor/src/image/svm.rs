//! SVM, the virtualization extension with which the processor below runs a guest.

use alloc::boxed::Box;
use core::fmt;

use pugmark_monitor::guest_map::PageTable;
use pugmark_monitor::msr::EFER;
use pugmark_monitor::vmcb::EFER_SVME;
use x86_64::registers::model_specific::Msr;

/// The processor below has no SVM with nested paging.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoSvm;

impl fmt::Display for NoSvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the processor has no SVM with nested paging: QEMU needs -cpu max or +svm,+npt")
    }
}

/// Enables SVM on this processor.
pub(crate) fn enable_svm() -> Result<(), NoSvm> {
    const SVM: u32 = 1 << 2;
    const NESTED_PAGING: u32 = 1 << 0;
    const VM_HSAVE_PA: u32 = 0xc001_0117;
    let cpuid = |leaf| core::arch::x86_64::__cpuid_count(leaf, 0);
    let has_leaf = cpuid(0x8000_0000).eax >= 0x8000_000a;
    if !has_leaf || cpuid(0x8000_0001).ecx & SVM == 0 || cpuid(0x8000_000a).edx & NESTED_PAGING == 0 {
        return Err(NoSvm);
    }
    let mut efer = Msr::new(EFER);
    // SAFETY: EFER exists: the boot code has written it.
    let value = unsafe { efer.read() };
    // SAFETY: the processor has SVM; nothing else changes.
    unsafe { efer.write(value | EFER_SVME) };
    let host_save: &'static mut PageTable = Box::leak(Box::new(PageTable::EMPTY));
    // SAFETY: the page belongs to the monitor, nothing else uses it, and its physical address equals its address.
    unsafe { Msr::new(VM_HSAVE_PA).write(host_save.0.as_ptr() as u64) };
    // SAFETY: SVM is enabled. From here on interrupts wait for the windows of `interrupts`.
    unsafe { core::arch::asm!("clgi", options(nomem, nostack)) };
    Ok(())
}
