//! Physical memory for the driver.

use core::ptr::NonNull;
use pugmark_kernel::memory::{Frames, Request};
use x86_64::PhysAddr;

use crate::arch::memory;

/// The kernel's free memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelFrames;

// SAFETY: blocks come from free memory and belong to the caller alone until they are given back. All memory is always
// mapped one to one, writable and write-back.
unsafe impl Frames for KernelFrames {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        let start = memory::take(request.size, request.align)?;
        if start + request.size > request.limit {
            memory::give_back(start, request.size);
            return None;
        }
        Some(PhysAddr::new(start))
    }

    unsafe fn free(&self, address: PhysAddr, request: Request) {
        memory::give_back(address.as_u64(), request.size);
    }

    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        memory::pointer(address.as_u64()).expect("a block that was allocated")
    }
}
