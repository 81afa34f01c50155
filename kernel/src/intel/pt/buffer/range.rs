//! A buffer that is one contiguous range of memory.

use super::BufferError;
use crate::intel::pt::topa;
use crate::memory::{Frames, Request};
use core::ptr::NonNull;
use x86_64::PhysAddr;

/// Single-range output: SDM vol. 3, Intel Processor Trace, "Single Range Output".
#[derive(Debug)]
pub(super) struct SingleRange<F: Frames> {
    frames: F,
    base: PhysAddr,
    request: Request,
}

impl<F: Frames> SingleRange<F> {
    pub(super) fn new(frames: F, bytes: u64, limit: u64) -> Result<Self, BufferError> {
        if !bytes.is_power_of_two() || !(0x1000..=1 << 32).contains(&bytes) {
            return Err(BufferError::SingleRangeSize { bytes });
        }
        // The base must have no bit in common with the mask, so the request is aligned to the size.
        let request = Request { size: bytes, align: bytes, limit };
        let base = topa::allocate(&frames, request)?;
        Ok(Self { frames, base, request })
    }

    pub(super) fn base(&self) -> u64 {
        self.base.as_u64()
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.request.size
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        self.frames.pointer(self.base)
    }
}

impl<F: Frames> Drop for SingleRange<F> {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this request; no unit uses it, because a unit would own this value.
        unsafe { self.frames.free(self.base, self.request) };
    }
}
