//! What the plugin does when the program makes another process.

use super::{IS_OFF, MAIN_ONLY, PluginProcess, THREADS, lock, ring_path, wire::Kind};
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
    let mut process = lock();
    // What is left of the other process's threads would write into its rings.
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
