//! Access to the real processor's registers: the only assembly of this crate.
//!
//! ```no_run
//! use pugmark_kernel::{arch::GuardedMsr, msr::Msr};
//!
//! // SAFETY: the kernel runs at CPL 0, and its #GP handler calls `fixup`.
//! let mut msr = unsafe { GuardedMsr::new() };
//! // A register that this processor lacks is an error, not a fault.
//! println!("IA32_RTIT_CTL: {:x?}", msr.rdmsr(0x570));
//! ```

mod guarded;

pub use guarded::{Fixup, GuardedMsr, GuardedXsaves, Interrupted, fixup};

use crate::msr::{GeneralProtection, Msr};
use core::marker::PhantomData;

/// RDMSR and WRMSR on the processor that executes them, without protection against #GP.
///
/// Access to a register that does not exist raises #GP in the kernel's own handler. That is acceptable if CPUID
/// announces the registers and the configuration was checked against it. A kernel that can extend its #GP handler
/// should use [`GuardedMsr`].
///
/// The type is neither `Send` nor `Sync`: a value belongs to the processor on which it was created.
#[derive(Debug)]
pub struct PlainMsr(PhantomData<*const ()>);

impl PlainMsr {
    /// Returns access to the registers of this processor.
    ///
    /// # Safety
    ///
    /// The caller runs at CPL 0, and the value stays on this logical processor: the thread that holds it does not move
    /// to another one.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

/// Reads the performance counter with this index on the processor that executes the call (RDPMC).
///
/// # Safety
///
/// The counter exists, and the caller runs at CPL 0 or with CR4.PCE set.
#[must_use]
pub unsafe fn rdpmc(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: by the caller's promise this does not fault; it changes nothing but the two registers.
    unsafe {
        core::arch::asm!(
            "rdpmc",
            in("ecx") index,
            out("eax") low,
            out("edx") high,
            options(nomem, nostack, preserves_flags),
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

// SAFETY: RDMSR and WRMSR access the registers of the processor that executes them, which is the same one for all
// calls, as the caller of `new` promised.
unsafe impl Msr for PlainMsr {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        let register = x86_64::registers::model_specific::Msr::new(address);
        // SAFETY: this runs at CPL 0, and reading has no effect on memory; a missing register raises #GP in the kernel.
        Ok(unsafe { register.read() })
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        let mut register = x86_64::registers::model_specific::Msr::new(address);
        // SAFETY: this runs at CPL 0; the caller is responsible for the value.
        unsafe { register.write(value) };
        Ok(())
    }
}
