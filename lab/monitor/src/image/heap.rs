//! The heap, from the end of the image to the end of the monitor's addresses.

use linked_list_allocator::LockedHeap;
use pugmark_monitor::guest_map::MONITOR;

#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

unsafe extern "C" {
    static image_end: u8;
}

/// Returns the physical address at which the image ends.
pub(crate) fn image_end_address() -> u64 {
    &raw const image_end as u64
}

/// Initialises the allocator. Must be called once, before the first allocation.
pub(crate) fn initialize() {
    let start = image_end_address();
    // SAFETY: the linker script puts nothing after `image_end`, and nothing else uses the memory from there to
    // the end of `MONITOR`. It is mapped, and this is the only call.
    unsafe { HEAP.lock().init(start as *mut u8, (MONITOR.end - start) as usize) };
}
