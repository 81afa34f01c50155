//! Measures the memory use of a piece of code.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The system's allocator, with a count of the bytes that each thread holds.
pub struct Counting;

thread_local! {
    /// The bytes that the thread has allocated and not freed; negative if it frees allocations of others.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The maximum of `HELD` since the last measurement began.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Runs a function. Returns its result, the maximum number of bytes that it held, and the bytes that are still held
/// after it, including its result.
pub fn measure<T>(run: impl FnOnce() -> T) -> (T, Held) {
    let before = HELD.get();
    PEAK.set(before);
    let result = run();
    (result, Held { most: PEAK.get() - before, left: HELD.get() - before })
}

/// The bytes that a piece of code holds on the heap.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Maximum number of bytes held.
    pub most: isize,
    /// The bytes still held at the end.
    pub left: isize,
}

fn add(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: the system's allocator does the work. Counting does not allocate, because the cells need neither
// initialisation at run time nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: the caller promises what the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        // SAFETY: as above, and memory allocated here came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) };
    }
}
