//! The program's system calls: what each of them changes.

use super::{
    KERNEL_TICKS, deviations::DeviationKind, exec, fork, lock, program_memory, starter, wire::Kind,
    with_thread,
};
use std::{
    ffi::{c_int, c_uint},
    sync::atomic::Ordering::Relaxed,
};

const MMAP: i64 = 9;
const MPROTECT: i64 = 10;
const RT_SIGACTION: i64 = 13;
const RT_SIGRETURN: i64 = 15;
const MREMAP: i64 = 25;
const SHMAT: i64 = 30;
const CLONE: i64 = 56;
const FORK: i64 = 57;
const VFORK: i64 = 58;
const EXECVE: i64 = 59;
const EXIT: i64 = 60;
const PRCTL: i64 = 157;
const EXIT_GROUP: i64 = 231;
const PKEY_MPROTECT: i64 = 329;
const EXECVEAT: i64 = 322;
const CLONE3: i64 = 435;

/// The handler of a signal that is ignored; that of one without a handler is 0.
const SIG_IGN: u64 = 1;

/// Returns true if an exception causes a signal.
fn is_of_fault(signal: u64) -> bool {
    const SIGNALS: [u64; 5] = [4, 5, 7, 8, 11];
    SIGNALS.contains(&signal)
}

pub(super) fn before(index: c_uint, number: i64, arguments: [u64; 5]) {
    let [a1, a2, a3, a4, a5] = arguments;
    starter::calls(index);
    match number {
        FORK | VFORK => starter::before_start(0),
        CLONE => starter::before_start(a1),
        // The structure begins with the flags.
        CLONE3 => starter::before_start(program_memory::number(a1).unwrap_or_default()),
        _ => {}
    }
    with_thread(index, |thread| {
        thread.settle();
        thread.ring.write(Kind::Call, &[]);
        thread.arguments = arguments;
        thread.publish_clock();
        match number {
            RT_SIGACTION if a2 != 0 => {
                // An action begins with the handler. If it cannot be read, the call fails.
                let Some(handler) = program_memory::number(a2) else { return };
                thread.ring.write(Kind::Handler, &[&(a1 as u32).to_le_bytes(), &handler.to_le_bytes()]);
                if let Some(process) = lock().as_mut() {
                    process.handlers.insert(a1 as u32, handler);
                    if is_of_fault(a1) && handler > SIG_IGN {
                        process.definitions.header().fault_handled.store(a1 as u32, Relaxed);
                    }
                }
            }
            RT_SIGRETURN => drop(thread.ring.write(Kind::SignalReturn, &[])),
            EXIT | EXIT_GROUP => drop(thread.ring.write(Kind::Exit, &[])),
            EXECVE => exec::follow_exec(thread, exec::Named::by(a1), a2, a3),
            EXECVEAT => {
                let (folder, flags) = (a1 as c_int, a5 as c_int);
                exec::follow_exec(thread, exec::Named { folder, path: a2, flags }, a3, a4);
            }
            CLONE | CLONE3 | FORK | VFORK => starter::starts(thread),
            _ => {}
        }
    });
}

pub(super) fn after(index: c_uint, number: i64, result: i64) {
    const PROT_EXEC: u64 = 4;
    const MAP_FIXED: u64 = 0x10;
    const PR_SET_NAME: u64 = 15;
    fork::after_call(result);
    if matches!(number, CLONE | CLONE3) {
        starter::started(result);
    }
    with_thread(index, |thread| {
        thread.waited += KERNEL_TICKS;
        thread.follow_clock();
        let [a1, a2, a3, a4, _] = thread.arguments;
        if let Some(found) = DeviationKind::of_call(number, thread.arguments, result, exec::is_writable) {
            thread
                .ring
                .write(Kind::Deviates, &found.words().map(u32::to_le_bytes).each_ref().map(|word| &word[..]));
        }
        let maps_code = match number {
            MMAP => a3 & PROT_EXEC != 0 || a4 & MAP_FIXED != 0,
            MPROTECT | MREMAP | SHMAT | PKEY_MPROTECT => true,
            _ => false,
        };
        if maps_code {
            thread.report_maps();
        }
        if number == PRCTL && a1 == PR_SET_NAME && result == 0 {
            // The system cuts a name after 15 bytes; what is after its end may not be mapped.
            let mut name = [0; 15];
            let letters = (a2..).zip(&mut name).map_while(|(at, letter)| {
                program_memory::read(at, std::slice::from_mut(letter)).filter(|()| *letter != 0)
            });
            let length = letters.count();
            thread.ring.write(Kind::Name, &[&name[..length]]);
        }
    });
}
