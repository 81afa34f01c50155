//! What the plugin does when the program makes another process.

use super::{IS_OFF, MAIN_ONLY, PluginProcess, THREADS, lock, ring_path, starter, wire::Kind};
use std::{cell::Cell, ptr::null_mut, sync::atomic::Ordering::Relaxed};

thread_local! {
    /// The system call in progress has counted a new process.
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

/// Before a fork: the recorder has to know of the new process, even if this one ends before the new one has rings.
pub(super) extern "C" fn begins() {
    if MAIN_ONLY.load(Relaxed) {
        return;
    }
    if let Some(process) = lock().as_ref() {
        process.definitions.header().forks.fetch_add(1, Relaxed);
        FORKING.set(true);
    }
}

/// After a system call: if it was a fork that failed, there is no new process.
pub(super) fn after_call(result: i64) {
    if FORKING.replace(false)
        && result < 0
        && let Some(process) = lock().as_ref()
    {
        process.definitions.header().forks.fetch_sub(1, Relaxed);
    }
}

/// In a forked process: it needs rings of its own.
pub(super) extern "C" fn forked() {
    FORKING.set(false);
    starter::forked();
    let mut process = lock();
    // The copies of the other process's threads would write into that process's rings.
    THREADS.iter().for_each(|thread| thread.store(null_mut(), Relaxed));
    let Some(own) = process.as_mut() else { return };
    if MAIN_ONLY.load(Relaxed) {
        IS_OFF.store(true, Relaxed);
        // Translated code goes on counting at this address.
        own.definitions.replace_by_memory();
        return;
    }
    let header = own.definitions.header();
    let parent = (header.pid.load(Relaxed), header.generation.load(Relaxed), own.blocks);
    let pid = std::process::id();
    let generation =
        (0..).find(|generation| !ring_path(&own.folder, 'p', pid, *generation).exists()).unwrap_or(0);
    // The count of instructions is at the same address, because translated code has it.
    match PluginProcess::ring(&own.folder, generation, own.definitions.address(), Some(parent)) {
        Some(ring) => {
            // The other process's ring is no longer mapped.
            std::mem::forget(std::mem::replace(&mut own.definitions, ring));
            own.generation = generation;
            // The recorder may not have read yet what the other process has written.
            for (signal, handler) in &own.handlers {
                own.definitions.write(Kind::Handler, &[&signal.to_le_bytes(), &handler.to_le_bytes()]);
            }
        }
        None => IS_OFF.store(true, Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::super::COUNTED;
    use super::*;
    use std::fs;

    #[test]
    fn a_fork_that_is_not_followed_goes_on_counting_where_nobody_reads() {
        let folder = std::env::temp_dir().join(format!("pugmark-fork-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let own = PluginProcess::begin(folder.clone(), vec![]).unwrap();
        let file = ring_path(&folder, 'p', std::process::id(), 0);
        // SAFETY: it points into the mapping of the ring, which `PROCESS` holds to the end of the test.
        let counted = unsafe { &*COUNTED.load(Relaxed) };
        *lock() = Some(own);
        MAIN_ONLY.store(true, Relaxed);
        counted.store(7, Relaxed);
        let before = fs::read(&file).unwrap();
        forked();
        counted.store(9, Relaxed);
        assert_eq!(fs::read(&file).unwrap(), before);
        assert!(IS_OFF.load(Relaxed));
        MAIN_ONLY.store(false, Relaxed);
        IS_OFF.store(false, Relaxed);
        *lock() = None;
        fs::remove_dir_all(&folder).unwrap();
    }
}
