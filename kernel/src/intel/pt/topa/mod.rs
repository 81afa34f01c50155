//! Tables of physical addresses (ToPA): lists of the memory regions that the processor writes packets to.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Table of Physical Addresses (ToPA)".

mod entry;
mod table;
#[cfg(test)]
mod tests;

pub use entry::RegionSize;
pub(crate) use table::{Chain, Listed, Marks, Sizes, Topa, TopaPlan, allocate};

use crate::memory::Request;
use core::fmt;

/// The reason why a table cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopaError {
    /// The size is not 4 KiB to 128 MiB by powers of two.
    RegionSize {
        /// The size in bytes.
        bytes: u64,
    },
    /// An address is misaligned.
    Misaligned {
        /// The physical address.
        address: u64,
        /// The required alignment: the region's size, or 4 KiB for a table.
        align: u64,
    },
    /// Memory beyond the physical addresses that the processor supports.
    AboveLimit {
        /// The physical address.
        address: u64,
        /// The first address that is too high.
        limit: u64,
    },
    /// There is no region; a ring needs at least one.
    Regions {
        /// The number of regions.
        regions: u32,
    },
    /// The number of regions in a table is not 1 to 511.
    RegionsPerTable {
        /// The number of regions in a table.
        regions: u32,
    },
    /// Regions of several sizes cannot have this many bytes together: none, or no multiple of the smallest size; or the
    /// largest size is smaller than that.
    MixedSize {
        /// The size of all regions together, in bytes.
        bytes: u64,
    },
    /// The embedding kernel has no memory that satisfies the request.
    NoMemory(Request),
}

impl fmt::Display for TopaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RegionSize { bytes } => {
                write!(f, "no ToPA region has {bytes:#x} bytes: 4 KiB to 128 MiB by powers of two")
            }
            Self::Misaligned { address, align } => {
                write!(f, "physical address {address:#x} is not a multiple of {align:#x}")
            }
            Self::AboveLimit { address, limit } => {
                write!(f, "physical address {address:#x} does not end below {limit:#x}")
            }
            Self::Regions { regions } => write!(f, "a ToPA of {regions} regions"),
            Self::RegionsPerTable { regions } => write!(f, "a ToPA table of {regions} regions: 1 to 511"),
            Self::MixedSize { bytes } => {
                write!(
                    f,
                    "regions of several sizes do not have {bytes:#x} bytes together: not 0, and a multiple of the \
                     smallest"
                )
            }
            Self::NoMemory(Request { size, align, limit }) => {
                write!(f, "no memory of {size:#x} bytes aligned to {align:#x} below {limit:#x}")
            }
        }
    }
}

impl core::error::Error for TopaError {}
