//! The memory of the records.

use super::ArchPebsCapabilities;
use crate::memory::{Frames, PhysAddr, Request, SharedBytes};
use core::fmt;

/// Contiguous physical memory for the records. Dropping it frees the memory.
#[derive(Debug)]
pub struct ArchPebsBuffer<F: Frames> {
    frames: F,
    base: PhysAddr,
    request: Request,
    spare: u64,
}

/// The unit of IA32_PEBS_INDEX.
pub(super) const UNIT: u64 = 16;
/// The largest buffer: the index has 23 bits.
const MOST: u64 = UNIT << 23;

impl<F: Frames> ArchPebsBuffer<F> {
    /// Allocates `bytes`, a power of two from 4 KiB to 128 MiB. A PMI comes when `spare` bytes, a multiple of 16, are
    /// left: the largest records take a page.
    ///
    /// # Errors
    ///
    /// The processor has no such buffer, or there is no memory.
    pub fn allocate(
        frames: F,
        capabilities: &ArchPebsCapabilities,
        bytes: u64,
        spare: u64,
    ) -> Result<Self, ArchPebsBufferError> {
        if !bytes.is_power_of_two() || !(0x1000..=MOST).contains(&bytes) {
            return Err(ArchPebsBufferError::Size { bytes });
        }
        if spare == 0 || spare >= bytes || spare % UNIT != 0 {
            return Err(ArchPebsBufferError::Spare { spare, bytes });
        }
        let request = Request { size: bytes, align: bytes, limit: capabilities.physical_limit };
        let base = frames.allocate(request).ok_or(ArchPebsBufferError::NoMemory(request))?;
        let buffer = Self { frames, base, request, spare };
        let start = base.as_u64();
        let fits = start % bytes == 0 && start.checked_add(bytes).is_some_and(|end| end <= request.limit);
        match fits {
            true => Ok(buffer),
            false => Err(ArchPebsBufferError::NotAsRequested { address: start, request }),
        }
    }

    /// Returns the value for IA32_PEBS_BASE: the address, and in bits 3:0 the size as a power of two of 4 KiB.
    pub(super) const fn base(&self) -> u64 {
        self.base.as_u64() | (self.request.size.trailing_zeros() - 12) as u64
    }

    /// Returns the size in bytes.
    pub(super) const fn size(&self) -> u64 {
        self.request.size
    }

    /// Returns the number of units of 16 bytes after which a PMI comes.
    pub(super) const fn threshold(&self) -> u64 {
        (self.request.size - self.spare) / UNIT
    }

    pub(super) fn bytes(&self) -> SharedBytes {
        // SAFETY: `Frames` maps the whole block until it is freed, when this value is dropped. RAM is initialized.
        unsafe { SharedBytes::new(self.frames.pointer(self.base), self.request.size as usize) }
    }
}

impl<F: Frames> Drop for ArchPebsBuffer<F> {
    fn drop(&mut self) {
        // SAFETY: allocated with this request; no session uses it, because a session would own this value.
        unsafe { self.frames.free(self.base, self.request) };
    }
}

/// The reason why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchPebsBufferError {
    /// The size is no power of two from 4 KiB to 128 MiB.
    Size {
        /// The requested size.
        bytes: u64,
    },
    /// The spare bytes are none, all, or no multiple of 16.
    Spare {
        /// The requested number.
        spare: u64,
        /// The size of the buffer.
        bytes: u64,
    },
    /// The kernel has no memory.
    NoMemory(Request),
    /// The kernel returned a block that is not as it was requested.
    NotAsRequested {
        /// The block's address.
        address: u64,
        /// The request.
        request: Request,
    },
}

impl fmt::Display for ArchPebsBufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { bytes } => {
                write!(f, "a buffer of {bytes} bytes: a power of two from 4096 to {MOST} is needed")
            }
            Self::Spare { spare, bytes } => {
                write!(f, "{spare} spare bytes of {bytes}: a multiple of {UNIT} is needed, and not all")
            }
            Self::NoMemory(Request { size, align, limit }) => {
                write!(f, "no memory: {size:#x} bytes, aligned to {align:#x}, below {limit:#x}")
            }
            Self::NotAsRequested { address, request: Request { size, align, limit } } => {
                write!(
                    f,
                    "{size:#x} bytes at {address:#x}, not aligned to {align:#x} or not below {limit:#x}"
                )
            }
        }
    }
}

impl core::error::Error for ArchPebsBufferError {}
