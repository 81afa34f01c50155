//! Notes which thread a signal ends: its thread in the emulator then sends the signal to the emulator's process.
//!
//! It does that by the C library's `kill`, which the emulator calls for nothing else but to stop; the program's system
//! calls of this kind do not go through the library. The plugin puts a function of its own in the place of `kill` in
//! the emulator's table of imported functions, because no callback of the plugin interface comes before such an end in
//! all versions, and none tells the thread.
//!
//! Emulators that have a callback before such an end leave signals without a handler to the system, which ends the
//! process wherever it is. There the emulator's handler takes the place of the default action, as in versions before:
//! the emulator ends its process by itself.
//!
//! Source: QEMU, `linux-user/signal.c`: `dump_core_and_abort`, `die_with_signal`, `signal_init` and `do_sigaction` of
//! versions 7.2 and 10.0.

use super::{
    API, THREADS,
    faults::{self, SIG_DFL, SignalAction, sigaction},
    imports,
    machine_plugin::state,
    wire::End,
};
use std::{
    ffi::{c_int, c_uint, c_void},
    sync::{OnceLock, atomic::Ordering::Relaxed},
};

const SIGKILL: c_int = 9;
const SIGSTOP: c_int = 19;
/// The signals that end no process without a handler: SIGCHLD, SIGCONT, those that stop it, SIGURG and SIGWINCH.
const HARMLESS: [c_int; 8] = [17, 18, SIGSTOP, 20, 21, 22, 23, 28];
/// The number of the last signal.
const LAST: c_int = 64;

unsafe extern "C" {
    fn kill(pid: c_int, signal: c_int) -> c_int;
}

/// The emulator's action at most signals.
static ACTION: OnceLock<SignalAction> = OnceLock::new();

/// Lets ends by signals be noted, if the emulator imports the functions.
pub(super) fn watch() {
    imports::replace(&[(c"kill", send as *const c_void), (c"sigaction", act as *const c_void)]);
}

/// Takes the emulator's action at most signals: from now on it is the default one, too.
pub(super) fn begin(action: SignalAction) {
    let _ = ACTION.set(action);
    for signal in (1..=LAST).filter(|signal| ends(*signal)) {
        if SignalAction::of(signal).is_some_and(|action| action.handler == SIG_DFL) {
            action.set(signal);
        }
    }
}

/// Returns true if a signal without a handler ends the process, and could have one.
fn ends(signal: c_int) -> bool {
    signal != SIGKILL && !HARMLESS.contains(&signal)
}

/// Sets an action of the emulator at a signal.
extern "C" fn act(signal: c_int, new: *const SignalAction, old: *mut SignalAction) -> c_int {
    // SAFETY: the emulator passes a valid pointer or null.
    let is_default = unsafe { new.as_ref() }.is_some_and(|action| action.handler == SIG_DFL);
    let own = ACTION.get().filter(|_| is_default && ends(signal));
    // SAFETY: both pointers are valid or null.
    unsafe { sigaction(signal, own.map_or(new, |action| &raw const *action), old) }
}

/// Notes that a signal ends this thread, and sends it.
extern "C" fn send(pid: c_int, signal: c_int) -> c_int {
    if pid.cast_unsigned() == std::process::id() && signal != SIGSTOP {
        note(signal.cast_unsigned());
        SignalAction::default().set(signal);
    }
    // SAFETY: takes numbers.
    unsafe { kill(pid, signal) }
}

fn note(signal: u32) {
    let Some(index) = faults::index() else { return };
    let thread = THREADS.get(index as usize).map(|place| place.load(Relaxed));
    let Some(thread) = thread.filter(|thread| !thread.is_null()) else { return };
    let [ip, cr2] = registers(index);
    // SAFETY: see `with_thread`.
    unsafe { &*thread }.ring.header().end.set(End { signal, ip, cr2 });
}

/// Returns RIP and CR2 of the calling thread's virtual processor, as far as the emulator tells: by the interface, which
/// versions from 10.1 on do in callbacks alone, or in words.
fn registers(index: c_uint) -> [Option<u64>; 2] {
    let told =
        API.get().and_then(|api| api.registers.as_ref()).map(|registers| registers.read([c"rip", c"cr2"]));
    if let Some(told @ [Some(_), _]) = told {
        return told;
    }
    let text = state::text(index).unwrap_or_default();
    ["RIP=", "CR2="].map(|name| u64::from_str_radix(text.split(name).nth(1)?.get(..16)?, 16).ok())
}
