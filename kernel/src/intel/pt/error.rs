//! What the processor says of memory and tables that it does not take.

use crate::msr::{OutputBase, OutputMaskPtrs, RtitStatus};
use core::fmt;

/// STATUS.Error, with the registers that say where. Nothing is traced until it is cleared.
///
/// Source: SDM vol. 3, Intel Processor Trace, "Operational Errors", "ToPA Errors".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationalError {
    /// IA32_RTIT_STATUS.
    pub status: RtitStatus,
    /// The table, or the range.
    pub base: OutputBase,
    /// The entry and the offset in its region.
    pub pointers: OutputMaskPtrs,
}

impl fmt::Display for OperationalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, base, pointers } = self;
        write!(
            f,
            "operational error: status {:#x}, output base {:#x}, entry {}, offset {:#x}",
            status.bits(),
            base.0,
            pointers.entry(),
            pointers.offset()
        )
    }
}

impl core::error::Error for OperationalError {}
