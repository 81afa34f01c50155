//! Memory for a trace, in single frames.

use crate::memory::{Frames, PhysAddr, Request};
use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PhysFrame, Size4KiB};

/// The size of a frame in bytes.
const FRAME: u64 = 4096;
/// The number of regions that a ToPA table lists beside the address of the next table.
const LISTED: u64 = 511;

/// Single 4 KiB frames of a kernel that has mapped its physical memory at an offset, taken in advance.
///
/// The pool gives out no block larger than a frame. [`Layout::mixed_topa`](crate::intel::pt::Layout::mixed_topa) takes
/// such frames; a layout that is one block does not.
///
/// A pool that is dropped keeps its frames from the kernel for ever: [`FramePool::release`] gives them back.
pub struct FramePool {
    offset: u64,
    /// The first free frame, which begins with the address of the next one. 0 after the last.
    free: Cell<u64>,
    frames: Cell<u64>,
}

impl FramePool {
    /// Takes the frames for `bytes` bytes of trace and the ToPA tables that list them; fewer if the kernel has no more.
    ///
    /// A processor whose ToPA has single entries (Broadwell) needs a table for each region: twice the bytes.
    ///
    /// # Safety
    ///
    /// All frames of the allocator must be mapped at `offset` plus their physical address, readable, writable and
    /// write-back, until they are released.
    #[must_use]
    pub unsafe fn new(allocator: &mut impl FrameAllocator<Size4KiB>, offset: u64, bytes: u64) -> Self {
        let pool = Self { offset, free: Cell::new(0), frames: Cell::new(0) };
        let regions = bytes.div_ceil(FRAME);
        for _ in 0..regions + regions.div_ceil(LISTED) {
            let Some(frame) = allocator.allocate_frame() else { break };
            pool.put(frame.start_address().as_u64());
        }
        pool
    }

    /// Returns the number of free frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames.get()
    }

    /// Returns the number of bytes of trace for which the free frames have room.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let frames = self.frames.get();
        (frames - frames.div_ceil(LISTED + 1)) * FRAME
    }

    /// Gives the free frames back to the kernel.
    pub fn release(self, allocator: &mut impl FrameDeallocator<Size4KiB>) {
        while let Some(frame) = self.take(u64::MAX) {
            let frame = PhysFrame::containing_address(PhysAddr::new(frame));
            // SAFETY: it came from the kernel, and no block has it.
            unsafe { allocator.deallocate_frame(frame) };
        }
    }

    fn put(&self, frame: u64) {
        // SAFETY: a frame of the kernel's, mapped there, that nobody has.
        unsafe { self.mapping(frame).cast().write(self.free.replace(frame)) };
        self.frames.set(self.frames.get() + 1);
    }

    /// Takes a frame that ends at or below `limit`.
    fn take(&self, limit: u64) -> Option<u64> {
        let frame = self.free.get();
        if frame == 0 || frame + FRAME > limit {
            return None;
        }
        // SAFETY: a free frame begins with the address of the next one.
        self.free.set(unsafe { self.mapping(frame).cast().read() });
        self.frames.set(self.frames.get() - 1);
        Some(frame)
    }

    fn mapping(&self, frame: u64) -> NonNull<u8> {
        NonNull::new((self.offset + frame) as *mut u8).expect("frame 0 of memory mapped at 0")
    }
}

// SAFETY: each frame is the allocator's to give, is given out once until it is freed, and is mapped write-back, as the
// caller of `FramePool::new` promised.
unsafe impl Frames for FramePool {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        let one = request.size == FRAME && request.align <= FRAME;
        one.then(|| self.take(request.limit)).flatten().map(PhysAddr::new)
    }

    unsafe fn free(&self, address: PhysAddr, _: Request) {
        self.put(address.as_u64());
    }

    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        self.mapping(address.as_u64())
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramePool").field("frames", &self.frames.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc};

    /// Frames of the host, where physical addresses are its own; the number of those that are left.
    struct Host(u64, Vec<u64>);

    // SAFETY: each frame is new.
    unsafe impl FrameAllocator<Size4KiB> for Host {
        fn allocate_frame(&mut self) -> Option<PhysFrame> {
            self.0 = self.0.checked_sub(1)?;
            // SAFETY: the size is not 0.
            let frame = unsafe { alloc(Layout::from_size_align(4096, 4096).unwrap()) };
            Some(PhysFrame::containing_address(PhysAddr::new(frame as u64)))
        }
    }

    impl FrameDeallocator<Size4KiB> for Host {
        unsafe fn deallocate_frame(&mut self, frame: PhysFrame) {
            self.1.push(frame.start_address().as_u64());
        }
    }

    #[test]
    fn frames_are_given_out_once_and_come_back() {
        // 0 bytes, one frame, a full table and one more; and what the kernel has, which can be less.
        for (bytes, left, taken) in
            [(0, 9, 0), (1, 9, 2), (4096, 9, 2), (8193, 9, 4), (511 << 12, 999, 512), (512 << 12, 999, 514)]
        {
            let mut host = Host(left, vec![]);
            // SAFETY: the host's memory is at its own addresses.
            let pool = unsafe { FramePool::new(&mut host, 0, bytes) };
            assert_eq!((pool.frames(), host.0), (taken, left - taken), "{bytes} bytes");
            assert_eq!(pool.bytes(), bytes.next_multiple_of(4096));
            let request = Request { size: 4096, align: 4096, limit: u64::MAX };
            let mut blocks: Vec<_> = std::iter::from_fn(|| pool.allocate(request)).collect();
            assert_eq!((pool.frames(), blocks.len() as u64), (0, taken));
            blocks.sort_unstable();
            blocks.dedup();
            assert_eq!(blocks.len() as u64, taken, "a frame was given out twice");
            for block in &blocks {
                // SAFETY: allocated by the same request, and not used any more.
                unsafe { pool.free(*block, request) };
            }
            pool.release(&mut host);
            host.1.sort_unstable();
            assert!(host.1.into_iter().eq(blocks.into_iter().map(PhysAddr::as_u64)));
        }
        let mut host = Host(3, vec![]);
        // SAFETY: as above.
        assert_eq!(unsafe { FramePool::new(&mut host, 0, 1 << 20) }.frames(), 3);
        // A second table for one region more than the first one lists.
        // SAFETY: as above.
        let pool = unsafe { FramePool::new(&mut Host(513, vec![]), 0, 1 << 22) };
        assert_eq!((pool.frames(), pool.bytes()), (513, 511 << 12));
    }

    #[test]
    fn what_is_larger_than_a_frame_or_beyond_the_limit_is_refused() {
        // SAFETY: the host's memory is at its own addresses.
        let pool = unsafe { FramePool::new(&mut Host(2, vec![]), 0, 4096) };
        let frame = Request { size: 4096, align: 4096, limit: u64::MAX };
        let refused = [
            Request { size: 8192, ..frame },
            Request { size: 8192, align: 8192, ..frame },
            Request { align: 8192, ..frame },
            Request { limit: 8191, ..frame },
        ];
        assert!(refused.into_iter().all(|request| pool.allocate(request).is_none()));
        assert_eq!(pool.frames(), 2);
        let first = pool.allocate(Request { align: 8, ..frame }).unwrap();
        // SAFETY: just allocated, and not used.
        unsafe { pool.free(first, frame) };
        let end = first.as_u64() + 4096;
        assert_eq!(pool.allocate(Request { limit: end - 1, ..frame }), None);
        assert_eq!(pool.allocate(Request { limit: end, ..frame }), Some(first));
    }
}
