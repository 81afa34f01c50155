//! Physical memory, which is mapped one to one.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use linked_list_allocator::LockedHeap;
use pugmark_boot::boot_info::Physical;
use pugmark_boot::regions::Regions;
use spin::Mutex;
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, PhysFrame, Size4KiB};

/// The heap's size.
const HEAP_SIZE: u64 = 48 << 20;

#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

static FREE: Mutex<Regions> = Mutex::new(Regions::new());

/// The end of all memory that the boot loader reports as usable.
static END: AtomicU64 = AtomicU64::new(0);

/// Takes over the free memory, all of it below `end`, and allocates the heap. Must be called once.
///
/// # Panics
/// If there is not enough memory for the heap.
pub(crate) fn init(free: Regions, end: u64) {
    END.store(end, Relaxed);
    *FREE.lock() = free;
    let start = take(HEAP_SIZE, 4096).expect("memory for the heap");
    // SAFETY: the range was free, now belongs to the heap alone, and stays mapped.
    unsafe { HEAP.lock().init(start as *mut u8, HEAP_SIZE as usize) };
}

/// Allocates `size` bytes, aligned to `align`; `None` if there is no room.
pub(crate) fn take(size: u64, align: u64) -> Option<u64> {
    FREE.lock().take(size, align)
}

/// Frees memory that [`take`] returned.
pub(crate) fn give_back(start: u64, size: u64) {
    FREE.lock().add(start..start + size);
}

/// Returns the first address after all memory.
pub(super) fn end() -> u64 {
    END.load(Relaxed)
}

/// Frames for page tables and pages, zeroed.
pub(super) struct ZeroedFrames;

// SAFETY: each frame was free and now belongs to the caller alone.
unsafe impl FrameAllocator<Size4KiB> for ZeroedFrames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let start = take(4096, 4096)?;
        // SAFETY: free memory, mapped one to one, that belongs to this function alone.
        unsafe { core::ptr::write_bytes(start as *mut u8, 0, 4096) };
        PhysFrame::from_start_address(PhysAddr::new(start)).ok()
    }
}

/// Returns the pointer to a physical address; `None` for address 0, which is never mapped.
pub(crate) fn pointer(address: u64) -> Option<NonNull<u8>> {
    NonNull::new(address as *mut u8)
}

/// The memory that can be read before paging is set up: the first 4 GiB.
pub(crate) struct Mapped;

impl Physical for Mapped {
    fn bytes(&self, address: u64, size: usize) -> Option<&[u8]> {
        let end = address.checked_add(size as u64)?;
        if address == 0 || end > 4 << 30 {
            return None;
        }
        // SAFETY: the entry code has mapped the first 4 GiB, and nothing writes to the boot information.
        Some(unsafe { core::slice::from_raw_parts(address as *const u8, size) })
    }
}

/// Returns the bytes of a range that the boot loader filled.
pub(crate) fn loaded(range: &Range<u64>) -> &'static [u8] {
    let size = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
    if range.start == 0 || size == 0 {
        return &[];
    }
    // SAFETY: the boot loader reports that its data is there. The range is not part of free memory, so nothing writes
    // to it.
    unsafe { core::slice::from_raw_parts(range.start as *const u8, size) }
}
