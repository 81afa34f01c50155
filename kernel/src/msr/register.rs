//! Registers as types, with the meaning of their values and their addresses.

use super::{GeneralProtection, Msr};
use core::{fmt, marker::PhantomData};

/// The value of a register.
pub(crate) trait RegisterValue: Copy {
    /// Returns the register with these bits; reserved bits are kept.
    fn from_bits(bits: u64) -> Self;

    /// Returns the value for EDX:EAX.
    fn to_bits(self) -> u64;
}

/// A register that is one number, such as a counter.
impl RegisterValue for u64 {
    fn from_bits(bits: u64) -> Self {
        bits
    }

    fn to_bits(self) -> u64 {
        self
    }
}

/// A register with one address.
pub(crate) trait Register: RegisterValue {
    /// The register's number, for ECX.
    const ADDRESS: u32;

    /// The register at its address.
    const AT: RegisterAt<Self> = RegisterAt::new(Self::ADDRESS);
}

/// The address of a register that is one of several, such as a counter's, or that has other addresses on other
/// processors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegisterAt<R = u64> {
    address: u32,
    value: PhantomData<R>,
}

impl<R> RegisterAt<R> {
    pub(crate) const fn new(address: u32) -> Self {
        Self { address, value: PhantomData }
    }

    /// Returns the register `n` addresses higher.
    pub(crate) const fn plus(self, n: u32) -> Self {
        Self::new(self.address + n)
    }

    /// Returns the register's number, for ECX.
    pub(crate) const fn address(self) -> u32 {
        self.address
    }
}

impl<R> fmt::Debug for RegisterAt<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MSR {:#x}", self.address)
    }
}

/// Access to registers that are given by their types.
pub(crate) trait TypedMsr: Msr {
    /// Reads a register, given by its type.
    ///
    /// # Errors
    ///
    /// As for [`Msr::rdmsr`].
    fn read<R: Register>(&mut self) -> Result<R, GeneralProtection> {
        self.read_at(R::AT)
    }

    /// Reads a register, given by its address.
    ///
    /// # Errors
    ///
    /// As for [`Msr::rdmsr`].
    fn read_at<R: RegisterValue>(&mut self, register: RegisterAt<R>) -> Result<R, GeneralProtection> {
        Ok(R::from_bits(self.rdmsr(register.address)?))
    }

    /// Writes a register, given by its type.
    ///
    /// # Safety
    ///
    /// As for [`Msr::wrmsr`].
    ///
    /// # Errors
    ///
    /// As for [`Msr::wrmsr`].
    unsafe fn write<R: Register>(&mut self, value: R) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises this.
        unsafe { self.write_at(R::AT, value) }
    }

    /// Writes a register, given by its address.
    ///
    /// # Safety
    ///
    /// As for [`Msr::wrmsr`].
    ///
    /// # Errors
    ///
    /// As for [`Msr::wrmsr`].
    unsafe fn write_at<R: RegisterValue>(
        &mut self,
        register: RegisterAt<R>,
        value: R,
    ) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises the same for `value`.
        unsafe { self.wrmsr(register.address, value.to_bits()) }
    }

    /// Reads a register, given by its type, and writes the value that `change` returns.
    ///
    /// # Safety
    ///
    /// As for [`Msr::wrmsr`], for the written value.
    ///
    /// # Errors
    ///
    /// As for [`Msr::wrmsr`], for either access.
    unsafe fn change<R: Register>(&mut self, change: impl FnOnce(R) -> R) -> Result<(), GeneralProtection> {
        let changed = change(self.read()?);
        // SAFETY: the caller promises this.
        unsafe { self.write(changed) }
    }

    /// Sets and clears bits of a register, given by its address. Returns its old value.
    ///
    /// # Safety
    ///
    /// As for [`Msr::wrmsr`], for the written value.
    ///
    /// # Errors
    ///
    /// As for [`Msr::wrmsr`], for either access.
    unsafe fn change_bits<R: RegisterValue>(
        &mut self,
        register: RegisterAt<R>,
        set: u64,
        clear: u64,
    ) -> Result<R, GeneralProtection> {
        let old = self.read_at(register)?;
        // SAFETY: the caller promises this.
        unsafe { self.write_at(register, R::from_bits(old.to_bits() & !clear | set)) }?;
        Ok(old)
    }
}

impl<M: Msr + ?Sized> TypedMsr for M {}
