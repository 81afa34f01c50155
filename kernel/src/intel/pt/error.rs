//! The processor's report that it does not accept memory or tables.

use crate::msr::{OutputBase, OutputMaskPtrs, RtitStatus};
use core::fmt;

/// STATUS.Error, with the registers that give its place. Nothing is traced until the bit is cleared.
///
/// Source: SDM vol. 3, Intel Processor Trace, "Operational Errors", "ToPA Errors".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationalError {
    /// IA32_RTIT_STATUS.
    pub status: RtitStatus,
    /// IA32_RTIT_OUTPUT_BASE: the table, or the single range.
    pub base: OutputBase,
    /// IA32_RTIT_OUTPUT_MASK_PTRS: the entry, and the offset in its region.
    pub pointers: OutputMaskPtrs,
    /// The ToPA entry that the registers name, as it is in the table. `None` for a single range, and if the registers
    /// do not name an entry of the driver's tables.
    pub entry: Option<u64>,
}

impl fmt::Display for OperationalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, base, pointers, entry } = self;
        write!(
            f,
            "operational error: status {:#x}, output base {:#x}, offset {:#x}, entry {}",
            status.bits(),
            base.0,
            pointers.offset(),
            pointers.entry()
        )?;
        match entry {
            Some(entry) => write!(f, ", which is {entry:#x} in the table"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for OperationalError {}
