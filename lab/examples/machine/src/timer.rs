//! The local APIC's timer.

use crate::processors::write_local_apic;
use spin::Once;
use x86_64::instructions::port::Port;

/// The vector of the interrupts that [`every`] asks for.
pub(crate) const TICK: u8 = 0x21;

const END_OF_INTERRUPT: u64 = 0xb0;
const VECTOR: u64 = 0x320;
const COUNT: u64 = 0x380;
const DIVISOR: u64 = 0x3e0;
/// A divisor of 1.
const BY_ONE: u32 = 0b1011;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;

static HANDLER: Once<fn()> = Once::new();

/// Calls `handler` in an interrupt after each number of ticks; they are the processor's crystal clock, 24 MHz on many.
pub fn every(ticks: u32, handler: fn()) {
    HANDLER.call_once(|| handler);
    start(u32::from(TICK) | PERIODIC, ticks);
}

/// Sends no interrupt any more.
pub fn stop() {
    write_local_apic(VECTOR, MASKED);
}

/// Sends one interrupt of this vector, after this number of ticks.
pub(crate) fn once(vector: u8, ticks: u32) {
    start(vector.into(), ticks);
}

fn start(entry: u32, ticks: u32) {
    for port in [0x21, 0xa1] {
        // SAFETY: the mask register of an 8259 controller. Its vectors are those of exceptions, and no driver of this
        // kernel waits for its interrupts.
        unsafe { Port::<u8>::new(port).write(0xff) };
    }
    write_local_apic(DIVISOR, BY_ONE);
    write_local_apic(VECTOR, entry);
    write_local_apic(COUNT, ticks);
}

/// Handles an interrupt that [`every`] asked for.
pub(crate) fn tick() {
    HANDLER.get().inspect(|handler| handler());
    end_interrupt();
}

/// Lets the local APIC send the next interrupt.
pub(crate) fn end_interrupt() {
    write_local_apic(END_OF_INTERRUPT, 0);
}
