//! Threads of programs, which one processor runs in turn: the local APIC's timer or a system call ends a thread's turn.
//!
//! Interrupts are disabled in the kernel; the trap that ends a turn leaves to another thread.

use crate::timer;
use core::arch::asm;
use pugmark_machine::traps::{SSE, TrapFrame};
use spin::{Mutex, Once};
use x86_64::PhysAddr;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::registers::rflags::RFlags;
use x86_64::structures::gdt::SegmentSelector;
use x86_64::structures::paging::PhysFrame;

/// The vector of the timer, and the one of system calls. RAX is a call's number, RDI its argument.
pub(crate) const TIMER: u8 = 0x20;
pub(crate) const SYSTEM_CALL: u8 = 0x80;

/// The system call that ends a thread, with its result; any other one ends its turn.
const EXIT: u64 = 1;

/// Ticks of the timer in a turn: 2 ms at 24 MHz.
const TURN: u32 = 48_000;

/// The thread that has called [`run`].
const MAIN: usize = 0;
const THREADS: usize = 8;

/// The state of a thread that does not run.
struct Thread {
    frame: TrapFrame,
    sse: [u8; SSE],
    cr3: u64,
    result: Option<u64>,
}

struct Threads {
    all: [Option<Thread>; THREADS],
    count: usize,
    current: usize,
}

static ALL: Mutex<Threads> = Mutex::new(Threads { all: [const { None }; THREADS], count: 1, current: MAIN });
static ON_SWITCH: Once<[fn(usize); 2]> = Once::new();
static SEGMENTS: Once<[SegmentSelector; 2]> = Once::new();

/// The state in which a thread starts.
pub(crate) struct Context {
    pub(crate) entry: u64,
    pub(crate) stack: u64,
    pub(crate) argument: u64,
    pub(crate) cr3: u64,
}

/// Sets the functions that are called with a thread's number when its turn ends and when it begins, both in its address
/// space and with interrupts disabled. 0 is the thread that has called [`run`].
pub fn on_switch(ends: fn(usize), begins: fn(usize)) {
    ON_SWITCH.call_once(|| [ends, begins]);
}

/// Runs all threads to their end.
pub fn run() {
    // SAFETY: the handler saves all registers and has a stack of its own.
    unsafe { asm!("int {}", const SYSTEM_CALL) };
}

/// Returns what a thread has ended with, if it has.
pub fn result(number: usize) -> Option<u64> {
    ALL.lock().all.get(number)?.as_ref()?.result
}

/// Notes the segments of user level: code and data.
pub(crate) fn set_segments(code: SegmentSelector, data: SegmentSelector) {
    SEGMENTS.call_once(|| [code, data]);
}

/// Adds a thread, and returns its number.
pub(crate) fn add(context: Context) -> usize {
    let Context { entry, stack, argument, cr3 } = context;
    let [code, data] = SEGMENTS.get().expect("segments").map(|selector| u64::from(selector.0));
    let rflags = RFlags::INTERRUPT_FLAG.bits() | 2;
    let frame =
        TrapFrame { rip: entry, rsp: stack, rdi: argument, rflags, cs: code, ss: data, ..Default::default() };
    let mut sse = [0; SSE];
    // FCW and MXCSR after a reset, by FNINIT and by the manual: all exceptions are masked.
    sse[..2].copy_from_slice(&0x37f_u16.to_le_bytes());
    sse[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes());
    let mut threads = ALL.lock();
    let number = threads.count;
    threads.all[number] = Some(Thread { frame, sse, cr3, result: None });
    threads.count += 1;
    number
}

/// Returns true if a trap of this vector ends a thread's turn.
pub(crate) fn is_switch(vector: u64) -> bool {
    [TIMER, SYSTEM_CALL].map(u64::from).contains(&vector)
}

/// Ends the turn of the thread that was trapped, and begins the next one's.
pub(crate) fn switch(frame: &mut TrapFrame) {
    let mut threads = ALL.lock();
    let by_timer = frame.vector == u64::from(TIMER);
    let from = threads.current;
    let result = (!by_timer && from != MAIN && frame.rax == EXIT).then_some(frame.rdi);
    // SAFETY: the stub has called `kernel_trap` with this frame.
    let sse = *unsafe { frame.sse() };
    let cr3 = Cr3::read().0.start_address().as_u64();
    threads.all[from] = Some(Thread { frame: *frame, sse, cr3, result });
    let to = threads.next();
    threads.current = to;
    let next = threads.all[to].as_ref().expect("a thread");
    *frame = next.frame;
    // SAFETY: as above.
    *unsafe { frame.sse() } = next.sse;
    let hooks = ON_SWITCH.get().filter(|_| from != to);
    if let Some([ends, _]) = hooks {
        ends(from);
    }
    if next.cr3 != cr3 {
        let table = PhysFrame::containing_address(PhysAddr::new(next.cr3));
        // SAFETY: a table of a program, or the kernel's; the kernel is in all of them.
        unsafe { Cr3::write(table, Cr3Flags::empty()) };
    }
    drop(threads);
    if let Some([_, begins]) = hooks {
        begins(to);
    }
    if by_timer {
        timer::end_interrupt();
    }
    if to == MAIN {
        timer::stop();
    } else {
        timer::once(TIMER, TURN);
    }
}

impl Threads {
    /// Returns the thread whose turn is next: the next one that has not ended, or, if all have, the one that has called
    /// [`run`].
    fn next(&self) -> usize {
        let others = self.count - 1;
        let in_turn = (0..others).map(|distance| (self.current + distance) % others + 1);
        let runs = |number: &usize| self.all[*number].as_ref().is_some_and(|thread| thread.result.is_none());
        in_turn.into_iter().find(runs).unwrap_or(MAIN)
    }
}
