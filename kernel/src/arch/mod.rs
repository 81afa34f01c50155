//! The real processor: the only assembly of this crate.

mod guarded;

pub use guarded::{Fixup, GuardedMsr, Interrupted, fixup};

use crate::msr::{GeneralProtection, Msr};
use core::marker::PhantomData;

/// RDMSR and WRMSR of the processor that executes them, without protection against #GP.
///
/// A register that is not there raises the kernel's own #GP handler. That is enough where CPUID says what is
/// there and the configuration was checked against it; a kernel that can give its #GP handler one more line should
/// use [`GuardedMsr`].
///
/// It is neither `Send` nor `Sync`: it stands for the processor it was made on.
#[derive(Debug)]
pub struct PlainMsr(PhantomData<*const ()>);

impl PlainMsr {
    /// The registers of this processor.
    ///
    /// # Safety
    ///
    /// The caller runs at CPL 0, and the value stays on this logical processor: whoever holds it is not moved to
    /// another one.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

/// RDPMC: the performance counter with this index, as the processor that executes it has it now.
///
/// # Safety
///
/// The counter is there, and the caller runs at CPL 0 or with CR4.PCE set.
#[must_use]
pub unsafe fn rdpmc(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: by the caller's promise it does not fault; it changes nothing but the two registers.
    unsafe {
        core::arch::asm!("rdpmc", in("ecx") index, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

// SAFETY: RDMSR and WRMSR reach the registers of the processor they run on, the same one for all calls by
// the promise of `new`.
unsafe impl Msr for PlainMsr {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        let register = x86_64::registers::model_specific::Msr::new(address);
        // SAFETY: at CPL 0, and reading has no effect on memory; a missing register is the kernel's #GP.
        Ok(unsafe { register.read() })
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        let mut register = x86_64::registers::model_specific::Msr::new(address);
        // SAFETY: at CPL 0; the caller vouches for the value.
        unsafe { register.write(value) };
        Ok(())
    }
}
