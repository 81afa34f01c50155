//! Model-specific registers (MSRs): the trait by which the driver accesses the processor, and a type for each register.

/// Implements `Register` for registers that are sets of flags, with their addresses.
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

/// Implements `Register` for registers that are one value, with their addresses.
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
pub(crate) mod counters;
mod debug;
mod ds;
mod lbr;
mod perfmon;
mod rtit;
#[cfg(test)]
mod tests;
mod vmx;

use core::fmt;

pub(crate) use counters::{
    Counter, FixedCtrCtrl, GlobalCtrl, Ia32PerfEvtSel, PebsDataCfg, PebsEnable, PerfCapabilities,
    fixed_counter, full_width_pmc, pmc, reload_fixed_counter, reload_pmc,
};
pub(crate) use debug::{DebugCtl, DebugCtlLayout, DebugFlags};
pub(crate) use ds::DsAreaBase;
pub use ds::{ApicBase, MiscEnable};
pub(crate) use lbr::{LbrCtl, LbrDepth, LbrSelect};
pub(crate) use perfmon::{GlobalStatus, GlobalStatusReset};
pub(crate) use rtit::{AddrA, AddrB, AddrCfg, Cr3Match, Xss};
pub use rtit::{OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus};
pub(crate) use vmx::VmxMisc;

/// RDMSR and WRMSR of one logical processor.
///
/// # Safety
///
/// An implementation must read and write the registers of one logical processor, the same one in all calls: the driver
/// frees memory after it has cleared TraceEn through this trait. Access to a register that does not exist must return
/// [`GeneralProtection`] or read as zero; it must not access anything else.
pub unsafe trait Msr {
    /// Reads a register (RDMSR).
    ///
    /// # Errors
    ///
    /// The processor raised #GP(0).
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection>;

    /// Writes a register (WRMSR).
    ///
    /// # Safety
    ///
    /// `value` must not make the processor write to memory that it was not given for that purpose, and must not change
    /// what the surrounding kernel relies on.
    ///
    /// # Errors
    ///
    /// The processor raised #GP(0) and nothing was written.
    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection>;
}

/// Access to registers that are given by their types.
pub(crate) trait TypedMsr: Msr {
    /// Reads a register, given by its type.
    ///
    /// # Errors
    ///
    /// Those of [`Msr::rdmsr`].
    fn read<R: Register>(&mut self) -> Result<R, GeneralProtection> {
        Ok(R::from_bits(self.rdmsr(R::ADDRESS)?))
    }

    /// Reads a register, given by its type, and writes the value that `change` returns.
    ///
    /// # Safety
    ///
    /// That of [`Msr::wrmsr`], for the written value.
    ///
    /// # Errors
    ///
    /// Those of [`Msr::wrmsr`], for either access.
    unsafe fn change<R: Register>(&mut self, change: impl FnOnce(R) -> R) -> Result<(), GeneralProtection> {
        let changed = change(self.read()?);
        // SAFETY: the caller promises this.
        unsafe { self.write(changed) }
    }

    /// Writes a register, given by its type.
    ///
    /// # Safety
    ///
    /// That of [`Msr::wrmsr`].
    ///
    /// # Errors
    ///
    /// Those of [`Msr::wrmsr`].
    unsafe fn write<R: Register>(&mut self, value: R) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises the same for `value`.
        unsafe { self.wrmsr(R::ADDRESS, value.to_bits()) }
    }
}

impl<M: Msr + ?Sized> TypedMsr for M {}

// SAFETY: the reference forwards every call to the implementation that it refers to.
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
pub(crate) trait Register: Copy {
    /// The register's number, for ECX.
    const ADDRESS: u32;

    /// Returns the register with these bits; reserved bits are kept.
    fn from_bits(bits: u64) -> Self;

    /// Returns the value for EDX:EAX.
    fn to_bits(self) -> u64;
}

/// A #GP(0) raised by an access to a model-specific register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection {
    /// The register's address.
    pub address: u32,
    /// The value to be written; `None` for a read.
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
