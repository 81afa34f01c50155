//! The free physical memory, from the boot loader's map.

use spin::Mutex;
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, PhysFrame, Size4KiB};

/// The first free address, and the end. Memory is never freed.
static FREE: Mutex<(u64, u64)> = Mutex::new((0, 0));

/// Adds the memory from `start` to `end` above this image. Only the largest region is kept.
pub(crate) fn add(start: u64, end: u64) {
    unsafe extern "C" {
        static __image_end: u8;
    }
    let start = start.max(&raw const __image_end as u64);
    let mut free = FREE.lock();
    if end.saturating_sub(start) > free.1 - free.0 {
        *free = (start, end);
    }
}

/// Allocates `size` bytes of physical memory, aligned to `align`, a power of two.
pub fn allocate(size: u64, align: u64) -> Option<u64> {
    let mut free = FREE.lock();
    let start = free.0.next_multiple_of(align);
    let end = start.checked_add(size).filter(|&end| end <= free.1)?;
    free.0 = end;
    Some(start)
}

/// Single frames, as paging takes them.
pub struct SingleFrames;

// SAFETY: a frame is given out once.
unsafe impl FrameAllocator<Size4KiB> for SingleFrames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        Some(PhysFrame::containing_address(PhysAddr::new(allocate(4096, 4096)?)))
    }
}
