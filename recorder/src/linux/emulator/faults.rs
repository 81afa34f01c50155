//! Notes the accesses at which the emulator got a signal: most are the program's, and the last one can have ended it.
//!
//! The emulator passes them to the program, or handles those at code that it has protected. It has set its handlers
//! before the program begins, and sets no others.
//!
//! Source: QEMU, `linux-user/signal.c`, `signal_init` and `do_sigaction`.

use super::{THREADS, dying, wire::EmulatorFault};
use std::{
    cell::Cell,
    ffi::{c_int, c_uint, c_void},
    mem::transmute,
    ptr::null_mut,
    sync::{
        Once,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

/// The signals of accesses: SIGBUS and SIGSEGV.
const SIGNALS: [c_int; 2] = [7, 11];
/// `si_code` of a signal that the system sends for an exception without an address.
const SI_KERNEL: c_int = 0x80;

type AccessHandler = extern "C" fn(c_int, *mut SignalInfo, *mut c_void);

/// The begin of `siginfo_t`.
#[repr(C)]
struct SignalInfo {
    signal: c_int,
    error: c_int,
    code: c_int,
    address: u64,
}

/// The handler that stands for the default action.
pub(super) const SIG_DFL: usize = 0;

/// The C library's `struct sigaction`. The default is the default action.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct SignalAction {
    pub(super) handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

unsafe extern "C" {
    pub(super) fn sigaction(signal: c_int, new: *const SignalAction, old: *mut SignalAction) -> c_int;
}

impl SignalAction {
    /// Returns the action at a signal.
    pub(super) fn of(signal: c_int) -> Option<Self> {
        let mut action = Self::default();
        // SAFETY: the system fills in the action.
        (unsafe { sigaction(signal, null_mut(), &raw mut action) } == 0).then_some(action)
    }

    pub(super) fn set(&self, signal: c_int) {
        // SAFETY: the default action, or that with a handler of the emulator, or with `note`.
        unsafe { sigaction(signal, &raw const *self, null_mut()) };
    }
}

/// The emulator's handlers.
static BEFORE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

thread_local! {
    /// The virtual processor of the thread.
    static INDEX: Cell<Option<c_uint>> = const { Cell::new(None) };
}

/// Returns the virtual processor of the calling thread.
pub(super) fn index() -> Option<c_uint> {
    INDEX.get()
}

/// Lets accesses of this thread be noted, which runs on a virtual processor.
pub(super) fn watch(index: c_uint) {
    static SET: Once = Once::new();
    INDEX.set(Some(index));
    SET.call_once(|| {
        for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
            // Neither the default action nor an ignored signal.
            let Some(action) = SignalAction::of(signal).filter(|action| action.handler > 1) else { continue };
            dying::begin(action);
            before.store(action.handler, Release);
            SignalAction { handler: note as AccessHandler as usize, ..action }.set(signal);
        }
    });
}

/// Notes an access and lets the emulator handle it, which may not return.
extern "C" fn note(signal: c_int, info: *mut SignalInfo, context: *mut c_void) {
    // SAFETY: the system passes a valid pointer.
    let SignalInfo { code, address, .. } = unsafe { info.read() };
    let thread = INDEX.get().and_then(|index| THREADS.get(index as usize)).map(|place| place.load(Relaxed));
    if let Some(thread) = thread.filter(|thread| !thread.is_null()) {
        // SAFETY: see `with_thread`.
        let thread = unsafe { &*thread };
        let address = (code != SI_KERNEL).then(|| super::of_program(address));
        // A signal that somebody has sent is none.
        let signal = if code > 0 { signal.cast_unsigned() } else { 0 };
        thread.ring.header().fault.set(EmulatorFault { signal, address, counted: thread.counted() });
    }
    let place = usize::from(signal != SIGNALS[0]);
    // SAFETY: the emulator's handler, which takes these.
    let before = unsafe { transmute::<usize, AccessHandler>(BEFORE[place].load(Acquire)) };
    before(signal, info, context);
}
