//! A test that a register that the processor announces really exists.

use super::Absent;
use crate::msr::{Msr, RegisterAt, RegisterValue, TypedMsr};
use core::fmt;

/// Checks that a register keeps the value written to it. A register that is not implemented raises #GP, or, on some
/// virtual machines, reads 0 and ignores writes.
///
/// `changed` computes the test value from the register's current value. The bits in `mask` must read back as written.
/// Then the old value is restored.
///
/// # Safety
///
/// The test value must not make the processor write to memory, and nothing else may use the register meanwhile.
pub(crate) unsafe fn probe<R: RegisterValue>(
    msr: &mut impl Msr,
    register: RegisterAt<R>,
    changed: impl FnOnce(R) -> R,
    mask: u64,
) -> Result<(), Absent> {
    let before = msr.read_at(register)?;
    let written = changed(before);
    // SAFETY: the caller promises this.
    unsafe { msr.write_at(register, written) }?;
    let read = msr.read_at(register)?;
    // SAFETY: this is the value that the register had before.
    unsafe { msr.write_at(register, before) }?;
    let (written, read) = (written.to_bits(), read.to_bits());
    match (written ^ read) & mask {
        0 => Ok(()),
        _ => Err(NotBacked { address: register.address(), written, read }.into()),
    }
}

/// A register that does not keep the value written to it: an emulator announces a unit that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotBacked {
    /// The register.
    pub address: u32,
    /// The value written to the register.
    pub written: u64,
    /// The value read from the register.
    pub read: u64,
}

impl fmt::Display for NotBacked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, written, read } = self;
        write!(f, "MSR {address:#x} reads {read:#x} after {written:#x} was written")
    }
}

impl core::error::Error for NotBacked {}
