//! Model-specific registers: the seam to the processor and a type for each register.

/// Registers that are sets of flags, with their addresses.
macro_rules! flags {
    ($($name:ty = $address:expr),* $(,)?) => {$(
        impl $crate::msr::Register for $name {
            const ADDRESS: u32 = $address;

            fn from_bits(bits: u64) -> Self {
                Self::from_bits_retain(bits)
            }

            fn to_bits(self) -> u64 {
                self.bits()
            }
        }
    )*};
}

/// Registers that are one value, with their addresses.
macro_rules! values {
    ($($name:ty = $address:expr),* $(,)?) => {$(
        impl $crate::msr::Register for $name {
            const ADDRESS: u32 = $address;

            fn from_bits(bits: u64) -> Self {
                Self(bits)
            }

            fn to_bits(self) -> u64 {
                self.0
            }
        }
    )*};
}

pub mod amd;
mod counters;
mod debug;
mod ds;
mod lbr;
mod perfmon;
mod rtit;
#[cfg(test)]
mod tests;
mod vmx;

use core::fmt;

pub use counters::{
    FixedCtrCtrl, GlobalCtrl, PebsDataCfg, PebsEnable, PerfCapabilities, PerfEvtSel, fixed_counter,
    full_width_pmc, pmc,
};
pub use debug::{DebugCtl, DebugCtlLayout, DebugFlags};
pub use ds::{ApicBase, DsAreaBase, MiscEnable};
pub use lbr::{LbrCtl, LbrDepth, LbrSelect};
pub use perfmon::{GlobalStatus, GlobalStatusReset};
pub use rtit::{AddrA, AddrB, AddrCfg, Cr3Match, OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus};
pub use vmx::VmxMisc;

/// RDMSR and WRMSR of one logical processor.
///
/// # Safety
///
/// What an implementation reads and writes must be one logical processor's registers, the same one for all
/// calls: the driver frees memory when it has cleared TraceEn through this seam. A register that is not there
/// must give [`GeneralProtection`] or read as zero; it must not stand for something else.
pub unsafe trait Msr {
    /// RDMSR.
    ///
    /// # Errors
    ///
    /// The processor raised #GP(0).
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection>;

    /// WRMSR.
    ///
    /// # Safety
    ///
    /// `value` must not make the processor write to memory that is not given to it for that purpose, nor change
    /// what the kernel around relies on.
    ///
    /// # Errors
    ///
    /// The processor raised #GP(0) and nothing was written.
    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection>;

    /// Reads a register by its type.
    ///
    /// # Errors
    ///
    /// As [`Msr::rdmsr`].
    fn read<R: Register>(&mut self) -> Result<R, GeneralProtection>
    where
        Self: Sized,
    {
        Ok(R::from_bits(self.rdmsr(R::ADDRESS)?))
    }

    /// Reads a register by its type, and writes what `change` makes of it.
    ///
    /// # Safety
    ///
    /// As [`Msr::wrmsr`], for what is written.
    ///
    /// # Errors
    ///
    /// As [`Msr::wrmsr`], for either access.
    unsafe fn change<R: Register>(&mut self, change: impl FnOnce(R) -> R) -> Result<(), GeneralProtection>
    where
        Self: Sized,
    {
        let changed = change(self.read()?);
        // SAFETY: the caller promises it.
        unsafe { self.write(changed) }
    }

    /// Writes a register by its type.
    ///
    /// # Safety
    ///
    /// As [`Msr::wrmsr`].
    ///
    /// # Errors
    ///
    /// As [`Msr::wrmsr`].
    unsafe fn write<R: Register>(&mut self, value: R) -> Result<(), GeneralProtection>
    where
        Self: Sized,
    {
        // SAFETY: the caller promises the same for `value`.
        unsafe { self.wrmsr(R::ADDRESS, value.to_bits()) }
    }
}

// SAFETY: every call goes to the one implementation behind the reference.
unsafe impl<M: Msr> Msr for &mut M {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        (**self).rdmsr(address)
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises the same.
        unsafe { (**self).wrmsr(address, value) }
    }
}

/// A register with one address.
pub trait Register: Copy {
    /// The number that goes into ECX.
    const ADDRESS: u32;

    /// The register with these bits, whatever they are: reserved ones are kept.
    fn from_bits(bits: u64) -> Self;

    /// The value for EDX:EAX.
    fn to_bits(self) -> u64;
}

/// #GP(0) on an access to a model-specific register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection {
    /// The register's address.
    pub address: u32,
    /// What was to be written; `None` for a read.
    pub written: Option<u64>,
}

impl fmt::Display for GeneralProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.written {
            None => write!(f, "RDMSR {:#x} raised #GP(0)", self.address),
            Some(value) => write!(f, "WRMSR {:#x} with {value:#x} raised #GP(0)", self.address),
        }
    }
}

impl core::error::Error for GeneralProtection {}
