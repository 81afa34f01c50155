//! Whether a register is really there.

use super::Absent;
use crate::msr::Msr;
use core::fmt;

/// Looks whether a register holds what is written: where nothing is behind it an access raises #GP, or, on some virtual
/// machines, reads give 0 and writes are dropped.
///
/// `changed` makes of what the register has what is written for the test; of that the bits `mask` must be read again. Then
/// it is put back.
///
/// # Safety
///
/// What is written makes the processor write to no memory, and nobody uses the register.
pub(crate) unsafe fn probe(
    msr: &mut impl Msr,
    address: u32,
    changed: impl FnOnce(u64) -> u64,
    mask: u64,
) -> Result<(), Absent> {
    let before = msr.rdmsr(address)?;
    let written = changed(before);
    // SAFETY: the caller promises it.
    unsafe { msr.wrmsr(address, written) }?;
    let read = msr.rdmsr(address)?;
    // SAFETY: what it was before.
    unsafe { msr.wrmsr(address, before) }?;
    match (written ^ read) & mask {
        0 => Ok(()),
        _ => Err(NotBacked { address, written, read }.into()),
    }
}

/// A register that does not hold what is written: an emulator announces what it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotBacked {
    /// The register.
    pub address: u32,
    /// What was written to it.
    pub written: u64,
    /// What was read from it.
    pub read: u64,
}

impl fmt::Display for NotBacked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, written, read } = self;
        write!(f, "MSR {address:#x} reads {read:#x} after {written:#x} was written")
    }
}

impl core::error::Error for NotBacked {}
