//! Follows the program into a process that it forks.

use super::{
    IS_OFF, MAIN_ONLY, PluginProcess, THREADS, lock, starter,
    wire::{Kind, Mapping},
};
use std::{
    cell::Cell,
    ptr::null_mut,
    sync::{MutexGuard, atomic::Ordering::Relaxed},
};

thread_local! {
    /// The system call in progress has counted a new process.
    static FORKING: Cell<bool> = const { Cell::new(false) };
    /// The lock that is held from before a fork until after it: a lock that another thread held would be held for ever
    /// in the new process, which has this thread alone.
    static LOCKED: Cell<Option<MutexGuard<'static, Option<PluginProcess>>>> = const { Cell::new(None) };
}

/// Notes a fork that is about to come: the recorder has to know of the new process, even if this one ends before the
/// new one has rings.
pub(super) extern "C" fn begins() {
    let process = lock();
    if let Some(process) = process.as_ref().filter(|_| !MAIN_ONLY.load(Relaxed)) {
        process.definitions.header().forks.fetch_add(1, Relaxed);
        FORKING.set(true);
    }
    LOCKED.set(Some(process));
}

/// Goes on after a fork, in the process that has forked.
pub(super) extern "C" fn goes_on() {
    drop(LOCKED.take());
}

/// Takes a process back that a system call was to fork: if the fork failed, there is no new process.
pub(super) fn after_call(result: i64) {
    if FORKING.replace(false)
        && result < 0
        && let Some(process) = lock().as_ref()
    {
        process.definitions.header().forks.fetch_sub(1, Relaxed);
    }
}

/// Gives a forked process rings of its own.
pub(super) extern "C" fn forked() {
    FORKING.set(false);
    starter::forked();
    let mut process = LOCKED.take().unwrap_or_else(lock);
    // The copies of the other process's threads would write into that process's rings.
    THREADS.iter().for_each(|thread| thread.store(null_mut(), Relaxed));
    let Some(own) = process.as_mut() else { return };
    own.started.clear();
    if MAIN_ONLY.load(Relaxed) {
        IS_OFF.store(true, Relaxed);
        // Translated code goes on counting at these addresses.
        own.definitions.replace_by_memory();
        own.replace_tables_by_memory();
        return;
    }
    let header = own.definitions.header();
    let parent = (header.pid.load(Relaxed), header.generation.load(Relaxed), own.blocks);
    let generation = own.rings.header().generations.fetch_add(1, Relaxed);
    // The count of instructions is at the same address, because translated code has it.
    let mapping = Mapping::InPlaceOf(own.definitions.address());
    match PluginProcess::ring(&own.rings, generation, mapping, Some(parent)) {
        Some(ring) => {
            // The other process's ring is no longer mapped.
            std::mem::forget(std::mem::replace(&mut own.definitions, ring));
            own.generation = generation;
            own.forget_counts(starter::index());
            // The recorder may not have read yet what the other process has written.
            for (signal, handler) in &own.handlers {
                own.definitions.write(Kind::Handler, &[&signal.to_le_bytes(), &handler.to_le_bytes()]);
            }
        }
        None => {
            // It is counted as one that got no ring.
            header.forks.fetch_sub(1, Relaxed);
            IS_OFF.store(true, Relaxed);
            own.definitions.replace_by_memory();
            own.replace_tables_by_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{COUNTED, Origin, PROCESS, rings::tests::rings, wire::Ring};
    use super::*;
    use std::{sync::Mutex, thread};

    /// The tests of what all threads share come one after the other.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn no_other_thread_holds_the_lock_while_the_process_is_copied() {
        let _alone = ALONE.lock();
        let is_locked = || thread::spawn(|| PROCESS.try_lock().is_err()).join().unwrap();
        for after in [goes_on, forked] {
            begins();
            assert!(is_locked());
            after();
            assert!(!is_locked());
        }
    }

    #[test]
    fn a_fork_that_is_not_followed_goes_on_counting_where_nobody_reads() {
        let _alone = ALONE.lock();
        let rings = rings(2);
        let (plugin, rings_path) = (String::new(), String::new());
        let origin = Origin { plugin, rings: rings_path, follow: true, count: false, reverses: true };
        let own = PluginProcess::begin(origin, rings.clone(), vec![]).unwrap();
        let shared = Ring::open(&rings, 0).unwrap();
        // SAFETY: it points into the mapping of the ring, which `PROCESS` holds to the end of the test.
        let counted = unsafe { &*COUNTED.load(Relaxed) };
        *lock() = Some(own);
        MAIN_ONLY.store(true, Relaxed);
        counted.store(7, Relaxed);
        forked();
        counted.store(9, Relaxed);
        assert_eq!(shared.header().counted.load(Relaxed), 7);
        assert!(IS_OFF.load(Relaxed));
        MAIN_ONLY.store(false, Relaxed);
        IS_OFF.store(false, Relaxed);
        *lock() = None;
    }
}
