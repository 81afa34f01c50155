//! Memory for a trace, from a region or from the kernel's frame allocator.

use core::ffi::c_void;
use pugmark_kernel::short::FramePool;
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PhysFrame, Size4KiB};

use crate::argument::check;
use crate::outcome::Failure;

/// The size of a frame in bytes.
const FRAME: u64 = 4096;

/// The memory that the processor writes the trace to: `pugmark_memory`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Memory {
    /// The difference between the virtual and the physical address of all frames.
    pub offset: u64,
    /// Without `allocate`, the physical address of a region.
    pub start: u64,
    /// The size of the region, or the number of bytes of trace for which frames are allocated.
    pub bytes: u64,
    /// Returns the physical address of a frame that nobody uses, or 0 if there is none.
    pub allocate: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    /// Takes a frame back.
    pub release: Option<unsafe extern "C" fn(*mut c_void, u64)>,
}

impl Memory {
    /// Returns true if a block at this physical address is aligned, not the first one of memory, and mapped below the
    /// end of the address space.
    fn has(&self, start: u64, bytes: u64) -> bool {
        let end = start.checked_add(bytes);
        let is_physical = end.is_some_and(|end| PhysAddr::try_new(end).is_ok());
        let is_mapped = end.and_then(|end| self.offset.checked_add(end)).is_some();
        start.is_multiple_of(FRAME) && start != 0 && is_physical && is_mapped
    }

    /// Takes the frames into a pool.
    pub(crate) fn take(self, context: *mut c_void) -> Result<(FramePool, FrameSource), Failure> {
        check(self.offset.is_multiple_of(FRAME), "memory.offset is no multiple of 4096")?;
        if self.allocate.is_none() {
            check(self.has(self.start, self.bytes), "memory.start or memory.bytes is no region of frames")?;
        }
        let mut source = FrameSource { memory: self, context, next: self.start, is_wrong: false };
        // SAFETY: the kernel has mapped its frames there, as `pugmark.h` asks.
        let pool = unsafe { FramePool::new(&mut source, self.offset, self.bytes) };
        if source.is_wrong {
            pool.release(&mut source);
            return Err(Failure::Argument("memory.allocate returned no frame's address"));
        }
        Ok((pool, source))
    }
}

/// The kernel's frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameSource {
    memory: Memory,
    context: *mut c_void,
    /// The first address of the region that was not given out.
    next: u64,
    is_wrong: bool,
}

// SAFETY: each frame of the region is given out once; the kernel promises as much of its allocator.
unsafe impl FrameAllocator<Size4KiB> for FrameSource {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let frame = match self.memory.allocate {
            Some(allocate) => {
                // SAFETY: the kernel's function, with its context.
                let frame = unsafe { allocate(self.context) };
                self.is_wrong |= frame != 0 && !self.memory.has(frame, FRAME);
                Some(frame).filter(|frame| *frame != 0 && !self.is_wrong)?
            }
            None => {
                let end = self.memory.start + self.memory.bytes;
                let frame = Some(self.next).filter(|frame| end - frame >= FRAME)?;
                self.next += FRAME;
                frame
            }
        };
        Some(PhysFrame::containing_address(PhysAddr::new(frame)))
    }
}

impl FrameDeallocator<Size4KiB> for FrameSource {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame) {
        if let (Some(_), Some(release)) = (self.memory.allocate, self.memory.release) {
            // SAFETY: the kernel's function, with its context and a frame that came from it.
            unsafe { release(self.context, frame.start_address().as_u64()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null_mut;

    extern crate std;
    use std::alloc::{Layout, alloc};

    /// Returns the address of this many frames of the host's memory.
    fn frames(number: u64) -> u64 {
        // SAFETY: the size is not 0.
        unsafe { alloc(Layout::from_size_align((number * FRAME) as usize, FRAME as usize).unwrap()) as u64 }
    }

    #[test]
    fn a_region_gives_each_of_its_whole_frames_once() {
        // The frames that are asked for are those of the trace, and one of a table.
        for (bytes, taken) in [(0, 0), (FRAME - 1, 0), (FRAME, 1), (3 * FRAME, 3), (3 * FRAME + 8, 3)] {
            let start = frames(4);
            let memory = Memory { offset: 0, start, bytes, allocate: None, release: None };
            let Ok((pool, mut source)) = memory.take(null_mut()) else { panic!("{bytes}") };
            assert_eq!(pool.frames(), taken, "{bytes}");
            assert_eq!(source.next, start + taken * FRAME);
            assert_eq!(source.allocate_frame(), None);
        }
    }

    /// Gives out one frame, whose address is the context's.
    unsafe extern "C" fn allocate(context: *mut c_void) -> u64 {
        // SAFETY: the context of the test below.
        core::mem::take(unsafe { &mut *context.cast::<u64>() })
    }

    #[test]
    fn an_allocator_that_has_no_more_is_no_error() {
        let mut one = frames(1);
        let memory =
            Memory { offset: 0, start: 0, bytes: 9 * FRAME, allocate: Some(allocate), release: None };
        let Ok((pool, mut source)) = memory.take((&raw mut one).cast()) else { panic!("an error") };
        assert_eq!((pool.frames(), source.is_wrong), (1, false));
        // Without a function that takes it back the frame is lost, and that is all.
        pool.release(&mut source);
    }
}
