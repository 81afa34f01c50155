//! The local APIC, by its memory-mapped registers.
//!
//! Source: SDM vol. 3, Advanced Programmable Interrupt Controller (APIC), "Local APIC Register Address Map".

use bitflags::bitflags;
use core::arch::asm;
use core::num::NonZero;
use x86_64::registers::model_specific::Msr;

use super::traps::TIMER_VECTOR;

/// Where the registers are after a reset; nobody has a reason to move them.
pub(super) const BASE: u64 = 0xfee0_0000;
/// The same, never 0.
pub(crate) const ADDRESS: NonZero<usize> = NonZero::new(BASE as usize).expect("not 0");
const IA32_APIC_BASE: u32 = 0x1b;
const APIC_GLOBAL_ENABLE: u64 = 1 << 11;

const EOI: u64 = 0xb0;
const SPURIOUS: u64 = 0xf0;
const COMMAND: u64 = 0x300;
const LVT_TIMER: u64 = 0x320;
const LVT_PERFORMANCE: u64 = 0x340;
const LVT_LINT0: u64 = 0x350;
const LVT_LINT1: u64 = 0x360;
const INITIAL_COUNT: u64 = 0x380;
const DIVIDE: u64 = 0x3e0;

bitflags! {
    /// What an entry of the local vector table has beside its vector.
    struct Entry: u32 {
        /// No interrupt.
        const MASKED = 1 << 16;
        /// The timer starts again when it has run down.
        const PERIODIC = 1 << 17;
    }
}

const SOFTWARE_ENABLE: u32 = 1 << 8;
const SPURIOUS_VECTOR: u32 = 0xff;
/// Divide the timer's clock by 1.
const DIVIDE_BY_1: u32 = 0b1011;

/// Enables the local APIC with every local interrupt masked.
///
/// # Panics
/// If the registers are not where a reset puts them.
pub(super) fn init() {
    // SAFETY: the MSR is there on every x86-64 processor; reading has no side effect.
    let base = unsafe { Msr::new(IA32_APIC_BASE).read() };
    assert!(base & 0xf_ffff_f000 == BASE && base & APIC_GLOBAL_ENABLE != 0, "local APIC at {base:#x}");
    for entry in [LVT_TIMER, LVT_PERFORMANCE, LVT_LINT0, LVT_LINT1] {
        write(entry, Entry::MASKED.bits());
    }
    write(DIVIDE, DIVIDE_BY_1);
    write(SPURIOUS, SOFTWARE_ENABLE | SPURIOUS_VECTOR);
}

/// Tells the local APIC that the interrupt is handled.
pub(crate) fn end_of_interrupt() {
    write(EOI, 0);
}

/// Sends an NMI to this processor.
pub(crate) fn send_nmi() {
    /// Physical destination mode, an NMI, level asserted.
    const NMI: u32 = 0b100 << 8 | 1 << 14;
    // The destination is a register of its own, 0 after a reset: the one processor that runs. The shorthand for the
    // sender does not do: not every processor sends an NMI by it.
    write(COMMAND, NMI);
}

/// Lets the timer interrupt every `count` ticks of its clock; 0 stops it.
pub(crate) fn start_timer(count: u32) {
    let entry = if count == 0 { Entry::MASKED } else { Entry::PERIODIC };
    write(LVT_TIMER, entry.bits() | u32::from(TIMER_VECTOR));
    write(INITIAL_COUNT, count);
}

/// One plain MOV: what lies below may have to carry it out by hand.
fn write(register: u64, value: u32) {
    // SAFETY: the registers are mapped, uncached. All that is written here makes is interrupts, for which the IDT
    // is ready.
    unsafe {
        asm!("mov [{1}], {0:e}", in(reg) value, in(reg) BASE + register, options(nostack, preserves_flags))
    };
}
