//! Model-specific registers (MSRs): the trait by which the driver accesses the processor, and a type for each register.
//!
//! ```
//! use pugmark_kernel::msr::RtitCtl;
//!
//! let ctl = RtitCtl::TRACE_EN | RtitCtl::OS | RtitCtl::BRANCH_EN | RtitCtl::TOPA;
//! assert_eq!(ctl.bits(), 0x2105);
//! ```

/// Implements `RegisterValue` for registers that are sets of flags, and `Register` for those with one address.
macro_rules! flags {
    ($($name:ty $(= $address:expr)?),* $(,)?) => {$(
        impl $crate::msr::RegisterValue for $name {
            fn from_bits(bits: u64) -> Self {
                Self::from_bits_retain(bits)
            }

            fn to_bits(self) -> u64 {
                self.bits()
            }
        }

        $(impl $crate::msr::Register for $name {
            const ADDRESS: u32 = $address;
        })?
    )*};
}

/// Implements `Register` for registers that are one value, with their addresses.
macro_rules! values {
    ($($name:ty = $address:expr),* $(,)?) => {$(
        impl $crate::msr::RegisterValue for $name {
            fn from_bits(bits: u64) -> Self {
                Self(bits)
            }

            fn to_bits(self) -> u64 {
                self.0
            }
        }

        impl $crate::msr::Register for $name {
            const ADDRESS: u32 = $address;
        }
    )*};
}

pub mod amd;
mod arch_pebs;
pub(crate) mod counters;
mod debug;
mod ds;
mod lbr;
mod perfmon;
mod register;
mod rtit;
#[cfg(test)]
mod tests;
mod vmx;

use core::fmt;

pub use arch_pebs::ArchPebsGroups;
pub(crate) use arch_pebs::{PebsBase, PebsIndex};
pub(crate) use counters::{
    BiosSignId, Counter, CounterAddresses, FixedCtrCtrl, GlobalCtrl, GlobalInUse, Ia32PerfEvtSel,
    PebsDataCfg, PebsEnable, PebsLdLatThreshold, PerfCapabilities, TsxForceAbort, fixed_counter,
    full_width_pmc, pmc, reload_causes, reload_fixed_counter, reload_pmc, reload_value,
};
pub(crate) use debug::{DebugCtl, DebugCtlLayout, DebugFlags};
pub(crate) use ds::DsAreaBase;
pub use ds::{ApicBase, MiscEnable};
pub(crate) use lbr::{LbrCtl, LbrDepth, LbrSelect};
pub(crate) use perfmon::{GlobalStatus, GlobalStatusReset};
pub(crate) use register::{Register, RegisterAt, RegisterValue, TypedMsr};
pub(crate) use rtit::{AddrCfg, Cr3Match, Xss, addr_a, addr_b, clear_trace_en};
pub use rtit::{OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus};
pub(crate) use vmx::VmxMisc;

/// RDMSR and WRMSR of one logical processor.
///
/// # Safety
///
/// An implementation must read and write the registers of one logical processor, the same one in all calls: the driver
/// frees memory after it has cleared TraceEn through this trait. Access to a register that does not exist must return
/// [`GeneralProtection`] or read as zero, and access nothing else.
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
    /// state that the surrounding kernel relies on.
    ///
    /// # Errors
    ///
    /// The processor raised #GP(0) and nothing was written.
    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection>;
}

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
