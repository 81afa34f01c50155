//! Which thread has started a thread or a process: the new one is traced if that one is.

use super::{HAS_THREADS, PluginThread, lock, wire::Header, wire::Kind};
use std::{
    cell::Cell,
    ffi::c_uint,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Who has started something: a thread's number, and how many it has started with this one in the upper half; 0 if
/// nobody reported it.
pub(super) type Starter = u64;

thread_local! {
    /// The thread is about to start something.
    static STARTING: Cell<Starter> = const { Cell::new(0) };
    /// The virtual processor of the thread, which is in a system call.
    static INDEX: Cell<c_uint> = const { Cell::new(0) };
    /// That is another thread of the process.
    static STARTS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Who has forked this process.
static FORKED_BY: AtomicU64 = AtomicU64::new(0);

/// The longest time that a new thread waits for the system call by which it was started to end. The emulator lets it
/// run when that call is about to end.
const LONGEST_START: Duration = Duration::from_secs(1);

/// Prepares for any system call.
pub(super) fn calls(index: c_uint) {
    INDEX.set(index);
}

/// Returns the virtual processor of a thread that is in a system call.
pub(super) fn index() -> c_uint {
    INDEX.get()
}

/// Prepares for the system call `clone`, with its flags.
pub(super) fn before_start(flags: u64) {
    const CLONE_VM: u64 = 0x100;
    const CLONE_VFORK: u64 = 0x4000;
    // The emulator forks where a process would share the memory until it executes a program.
    let thread = flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM;
    STARTING.set(0);
    STARTS_THREAD.set(thread);
    if thread {
        // Before the first one, the emulator forgets all blocks that it has translated.
        HAS_THREADS.store(true, Relaxed);
    }
}

/// Prepares for the system call by which a thread starts another one, or a process.
pub(super) fn starts(thread: &mut PluginThread) {
    thread.starts += 1;
    thread.ring.write(Kind::Starts, &[&thread.starts.to_le_bytes()]);
    let tid = thread.ring.header().tid.load(Relaxed);
    STARTING.set(u64::from(thread.starts) << 32 | u64::from(tid));
}

/// Takes the result of the system call `clone`: the new thread's number, if it has started one.
pub(super) fn started(result: i64) {
    if STARTS_THREAD.take()
        && result > 0
        && let Some(process) = lock().as_mut()
    {
        process.started.insert(result as u32, STARTING.get());
    }
}

/// Notes who has started the only thread of a forked process: the thread that forked.
pub(super) fn forked() {
    FORKED_BY.store(STARTING.get(), Relaxed);
}

/// Returns who has started the calling thread, which has this number.
pub(super) fn of(tid: u32) -> Starter {
    if tid == std::process::id() {
        return FORKED_BY.load(Relaxed);
    }
    let begin = Instant::now();
    while begin.elapsed() < LONGEST_START {
        match lock().as_mut().map(|process| process.started.remove(&tid)) {
            Some(None) => {}
            known => return known.flatten().unwrap_or_default(),
        }
        thread::sleep(Duration::from_micros(20));
    }
    0
}

/// Says in a new thread's ring who has started the thread.
pub(super) fn fill_in(starter: Starter, header: &Header) {
    header.starter.store(starter as u32, Relaxed);
    header.start.store((starter >> 32) as u32, Relaxed);
}
