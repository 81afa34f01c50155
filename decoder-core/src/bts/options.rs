//! Facts about the traced code that branch records lack: execution modes, handlers, the start and the end.

use core::ops::RangeInclusive;

use crate::mode::ExecMode;

/// Facts about the traced code that branch records lack.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The mode of code outside the ranges of `modes`.
    pub mode: ExecMode,
    /// The modes of code that runs in other modes, by its addresses.
    pub modes: &'a [ModeRange],
    /// The address space that the code ran in, if the image has several.
    pub cr3: Option<u64>,
    /// The first instruction that was traced. Without it, the code before the first branch is unknown.
    pub start: Option<u64>,
    /// The last instruction that was traced. Without it, the code after the last branch is unknown.
    pub end: Option<u64>,
    /// The targets of interrupts and exceptions; at best, the exact addresses in the interrupt descriptor table.
    /// Without this list any target is possible, but an interrupt directly before an indirect branch is not detected.
    pub handlers: Option<&'a [RangeInclusive<u64>]>,
    /// True if the processor stored branches of one privilege level only (BTS_OFF_OS or BTS_OFF_USR): code of the other
    /// level is missing without a mark.
    pub one_level: bool,
}

/// Code of one execution mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModeRange {
    /// The addresses of the code.
    pub addresses: RangeInclusive<u64>,
    /// The mode that it runs in.
    pub mode: ExecMode,
}

/// All code is 64-bit, and nothing else is known.
impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            mode: ExecMode::Bits64,
            modes: &[],
            cr3: None,
            start: None,
            end: None,
            handlers: None,
            one_level: false,
        }
    }
}
