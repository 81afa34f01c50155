//! Which thread has started a thread or a process: the new one is traced if that one is.

use super::{
    PluginThread, VCPUS,
    wire::{Header, Kind},
};
use std::{
    cell::Cell,
    ffi::c_uint,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

thread_local! {
    /// The virtual processor that starts something now, and who that is.
    static STARTING: Cell<(c_uint, u64)> = const { Cell::new((0, 0)) };
}

/// Who has started the thread on each virtual processor: a thread's number, and how many it has started with this one
/// in the upper half.
static STARTERS: [AtomicU64; VCPUS] = [const { AtomicU64::new(0) }; VCPUS];

/// Before the system call by which a thread starts another one, or a process.
pub(super) fn starts(thread: &mut PluginThread, index: c_uint) {
    thread.starts += 1;
    thread.ring.write(Kind::Starts, &[&thread.starts.to_le_bytes()]);
    let tid = thread.ring.header().tid.load(Relaxed);
    STARTING.set((index, u64::from(thread.starts) << 32 | u64::from(tid)));
}

/// A virtual processor is made, by the thread that needs it for another one.
pub(super) fn begins(index: c_uint) {
    if let Some(starter) = STARTERS.get(index as usize) {
        starter.store(STARTING.get().1, Relaxed);
    }
}

/// In a forked process: its thread is on the virtual processor on which it was in the other process.
pub(super) fn forked() {
    let (index, starter) = STARTING.get();
    if let Some(place) = STARTERS.get(index as usize) {
        place.store(starter, Relaxed);
    }
}

/// Says in a new thread's ring who has started the thread.
pub(super) fn fill_in(index: c_uint, header: &Header) {
    let starter = STARTERS.get(index as usize).map_or(0, |starter| starter.load(Relaxed));
    header.starter.store(starter as u32, Relaxed);
    header.start.store((starter >> 32) as u32, Relaxed);
}
