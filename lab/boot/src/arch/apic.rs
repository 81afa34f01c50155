//! The local APIC, through its memory-mapped registers, or in x2APIC mode through MSRs.
//!
//! Source: SDM vol. 3, Advanced Programmable Interrupt Controller (APIC), "Local APIC Register Address Map", "x2APIC
//! Register Address Space", "x2APIC State Transitions".

use bitflags::bitflags;
use core::arch::asm;
use core::num::NonZero;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use raw_cpuid::CpuId;
use x86_64::registers::model_specific::Msr;

use super::vectors;

/// The address of the registers after a reset; nothing moves them.
pub(super) const BASE: u64 = 0xfee0_0000;
/// The same address as a number that is never 0.
pub(super) const ADDRESS: NonZero<usize> = NonZero::new(BASE as usize).expect("not 0");
const IA32_APIC_BASE: u32 = 0x1b;
const APIC_GLOBAL_ENABLE: u64 = 1 << 11;
const X2APIC_MODE: u64 = 1 << 10;
/// The MSR of the page's first register; each further 16 bytes of the page are the next MSR.
const X2APIC_REGISTERS: u32 = 0x800;

/// All processors use x2APIC mode.
static X2APIC: AtomicBool = AtomicBool::new(false);

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
    /// Bits of an entry of the local vector table, besides its vector.
    struct LvtEntry: u32 {
        /// The interrupt is masked.
        const MASKED = 1 << 16;
        /// The timer starts again when it reaches 0.
        const PERIODIC = 1 << 17;
    }
}

const SOFTWARE_ENABLE: u32 = 1 << 8;
/// Divides the timer's clock by 1.
const DIVIDE_BY_1: u32 = 0b1011;

/// Sets the mode for all processors. Must be called once, before [`init`].
///
/// # Panics
/// If CPUID does not announce x2APIC mode.
pub(super) fn use_mode(x2apic: bool) {
    let there = CpuId::new().get_feature_info().is_some_and(|features| features.has_x2apic());
    assert!(!x2apic || there, "CPUID.1:ECX[21]: there is no x2APIC mode");
    X2APIC.store(x2apic, Relaxed);
}

/// Returns true if the registers are MSRs.
pub(super) fn is_x2apic() -> bool {
    X2APIC.load(Relaxed)
}

/// Enables the local APIC with all local interrupts masked.
///
/// # Panics
/// If the registers are not at the address that a reset gives them.
pub(super) fn init() {
    // SAFETY: every x86-64 processor has the MSR; reading has no side effect.
    let base = unsafe { Msr::new(IA32_APIC_BASE).read() };
    assert!(base & 0xf_ffff_f000 == BASE && base & APIC_GLOBAL_ENABLE != 0, "local APIC at {base:#x}");
    if is_x2apic() {
        // SAFETY: the change is legal from xAPIC mode, the mode after a reset.
        unsafe { Msr::new(IA32_APIC_BASE).write(base | X2APIC_MODE) };
    }
    for entry in [LVT_TIMER, LVT_PERFORMANCE, LVT_LINT0, LVT_LINT1] {
        write(entry, LvtEntry::MASKED.bits());
    }
    write(DIVIDE, DIVIDE_BY_1);
    write(SPURIOUS, SOFTWARE_ENABLE | u32::from(vectors::SPURIOUS));
}

/// Signals the local APIC that the interrupt was handled.
pub(crate) fn end_of_interrupt() {
    write(EOI, 0);
}

/// Sends an NMI to this processor.
pub(crate) fn send_nmi() {
    /// Physical destination mode, an NMI, level asserted.
    const NMI: u32 = 0b100 << 8 | 1 << 14;
    // The destination is in another register, which is 0 after a reset: the first processor, the only one that sends
    // NMIs. The shorthand for "self" cannot be used, because not every processor can send itself an NMI that way.
    write(COMMAND, NMI);
}

/// All processors but the sender.
const OTHERS: u32 = 0b11 << 18;

/// Starts all other processors at this page: INIT, its deassertion, and two start-up interrupts.
pub(super) fn start_others(page: u8) {
    const INIT: u32 = 0b101 << 8;
    const START_UP: u32 = 0b110 << 8;
    const ASSERT: u32 = 1 << 14;
    const LEVEL: u32 = 1 << 15;
    for command in [
        INIT | ASSERT,
        INIT | LEVEL,
        START_UP | ASSERT | u32::from(page),
        START_UP | ASSERT | u32::from(page),
    ] {
        write(COMMAND, OTHERS | command);
    }
}

/// Interrupts all other processors with [`vectors::WAKE`].
pub(super) fn wake_others() {
    write(COMMAND, OTHERS | 1 << 14 | u32::from(vectors::WAKE));
}

/// Makes the timer interrupt every `count` ticks of its clock; 0 stops it.
pub(crate) fn start_timer(count: u32) {
    let entry = if count == 0 { LvtEntry::MASKED } else { LvtEntry::PERIODIC };
    write(LVT_TIMER, entry.bits() | u32::from(vectors::TIMER));
    write(INITIAL_COUNT, count);
}

/// Writes a register. In the page it uses one plain MOV, because a monitor may have to emulate the instruction.
fn write(register: u64, value: u32) {
    if is_x2apic() {
        // The interrupt command register has its destination in the upper half: 0, the first processor.
        let mut msr = Msr::new(X2APIC_REGISTERS + (register >> 4) as u32);
        // SAFETY: the only effect of these writes is interrupts, and the IDT is ready for them.
        return unsafe { msr.write(value.into()) };
    }
    // SAFETY: the registers are mapped, uncached. The only effect of these writes is interrupts, and the IDT is ready
    // for them.
    unsafe {
        asm!("mov [{1}], {0:e}", in(reg) value, in(reg) BASE + register, options(nostack, preserves_flags))
    };
}
