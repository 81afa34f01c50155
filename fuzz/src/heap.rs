//! How much memory something takes.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The system's allocator, with a count of what each thread has.
pub struct Counting;

thread_local! {
    /// Bytes that the thread has allocated and not freed; below zero where it frees what others allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The most since the last look.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Runs something; the most bytes that it held at a time, and those that it still holds, its result among them.
pub fn measure<T>(run: impl FnOnce() -> T) -> (T, Held) {
    let before = HELD.get();
    PEAK.set(before);
    let result = run();
    (result, Held { most: PEAK.get() - before, left: HELD.get() - before })
}

/// What something holds of the heap, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The most at a time.
    pub most: isize,
    /// Behind it.
    pub left: isize,
}

fn add(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: the system's allocator does all of it; counting does not allocate, the cells need neither memory nor a
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        // SAFETY: as above; what was allocated here came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) };
    }
}
