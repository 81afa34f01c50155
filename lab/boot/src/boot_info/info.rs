//! The contents common to both kinds of boot information.

use core::ops::Range;

use crate::regions::Regions;

/// The information from a boot loader.
#[derive(Clone, Debug)]
pub struct BootInfo {
    /// All usable memory, including what is in use already.
    pub memory: Regions,
    /// The address range of the command line, without the zero at its end.
    pub command_line: Range<u64>,
    /// The first module: this kernel's own ELF file.
    pub module: Option<Range<u64>>,
}
