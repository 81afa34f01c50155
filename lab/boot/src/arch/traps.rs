//! Exceptions and interrupts: the IDT, the stubs, and the handling of each vector.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pugmark_kernel::arch::fixup;
use pugmark_kernel::pmi::Pmi;
use pugmark_machine::traps::{TrapFrame, stub};
use spin::{LazyLock, Once};
use x86_64::registers::control::Cr2;
use x86_64::structures::idt::{Entry, EntryOptions, InterruptDescriptorTable};

use super::paging::FaultCause;
use super::segments::TrapStack;
use super::{apic, nmi, paging, stack, user, vectors};

/// Number of timer interrupts.
pub(crate) static TICKS: AtomicU64 = AtomicU64::new(0);
/// Number of `UD2` instructions that were skipped.
pub(crate) static UNDEFINED_INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);
/// Number of `INT3` instructions that were executed.
pub(crate) static BREAKPOINTS: AtomicU64 = AtomicU64::new(0);
/// Number of page faults on demand pages that were repaired.
pub(crate) static PAGE_FAULTS: AtomicU64 = AtomicU64::new(0);
/// Number of page faults that the tracing hardware caused.
pub(crate) static AREA_FAULTS: AtomicU64 = AtomicU64::new(0);

/// The way in which a possible PMI arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// As an NMI.
    Nmi,
    /// Through the vector [`vectors::PMI`].
    Vector,
}

/// The function that serves a possible PMI, with the interrupted RIP.
pub(crate) type PmiHandler = fn(Arrival, u64) -> Pmi;

static PMI_HANDLER: Once<PmiHandler> = Once::new();

/// Registers the handler of PMIs. Without one, no interrupt is a PMI. Only the first call has an effect.
pub(crate) fn on_pmi(handler: PmiHandler) {
    PMI_HANDLER.call_once(|| handler);
}

fn serve_pmi(arrival: Arrival, interrupted: u64) -> Pmi {
    PMI_HANDLER.get().map_or(Pmi::NotOurs, |handler| handler(arrival, interrupted))
}

/// Handles every trap. The stubs call it.
#[unsafe(no_mangle)]
extern "C" fn kernel_trap(frame: &mut TrapFrame) {
    // The stubs push vectors of eight bits.
    match frame.vector as u8 {
        vectors::NMI => match serve_pmi(Arrival::Nmi, frame.rip) {
            // An NMI of unknown origin counts as the tracing unit's unless one was sent.
            Pmi::Unknown => _ = nmi::handle_sent(),
            Pmi::NotOurs if nmi::handle_sent() => {}
            Pmi::NotOurs => unexpected(frame),
            Pmi::Stray => {}
            Pmi::Served | Pmi::Later | Pmi::Stuck => nmi::note_served_pmi(),
        },
        vectors::BREAKPOINT => _ = BREAKPOINTS.fetch_add(1, Relaxed),
        vectors::UNDEFINED if frame.cs & 3 == 0 && paging::code_at(frame.rip) == Some([0x0f, 0x0b]) => {
            UNDEFINED_INSTRUCTIONS.fetch_add(1, Relaxed);
            frame.rip += 2;
        }
        vectors::GENERAL_PROTECTION => match fixup(frame.rip) {
            Some(fixup) => frame.resume(fixup),
            None => unexpected(frame),
        },
        vectors::PAGE_FAULT if stack::is_below(Cr2::read_raw()) => {
            panic!("a stack has overflowed: {:#x} is below it; {frame:x?}", Cr2::read_raw())
        }
        vectors::PAGE_FAULT => match paging::repair(Cr2::read_raw(), frame.error) {
            Some(FaultCause::DemandPage) => _ = PAGE_FAULTS.fetch_add(1, Relaxed),
            Some(FaultCause::RevokedPage) => _ = AREA_FAULTS.fetch_add(1, Relaxed),
            None => unexpected(frame),
        },
        vectors::TIMER => {
            TICKS.fetch_add(1, Relaxed);
            apic::end_of_interrupt();
        }
        vectors::WAKE => apic::end_of_interrupt(),
        vectors::PMI => {
            serve_pmi(Arrival::Vector, frame.rip);
            apic::end_of_interrupt();
        }
        vectors::SYSTEM_CALL => user::interrupt_call(frame),
        vectors::SPURIOUS => {}
        _ => unexpected(frame),
    }
}

#[cold]
fn unexpected(frame: &TrapFrame) -> ! {
    let cr2 = Cr2::read_raw();
    panic!("unexpected trap {}, CR2 {cr2:#x}: {frame:x?}", frame.vector)
}

static IDT: LazyLock<InterruptDescriptorTable> = LazyLock::new(|| {
    let mut idt = InterruptDescriptorTable::new();
    use TrapStack::{DoubleFault, Exception, Interrupt, Nmi, SystemCall};
    install(&mut idt.divide_error, 0, Exception);
    install(&mut idt.debug, 1, Exception);
    install(&mut idt.non_maskable_interrupt, 2, Nmi);
    install(&mut idt.breakpoint, 3, Exception).set_privilege_level(x86_64::PrivilegeLevel::Ring3);
    install(&mut idt.overflow, 4, Exception);
    install(&mut idt.bound_range_exceeded, 5, Exception);
    install(&mut idt.invalid_opcode, 6, Exception);
    install(&mut idt.device_not_available, 7, Exception);
    install(&mut idt.double_fault, 8, DoubleFault);
    install(&mut idt.invalid_tss, 10, Exception);
    install(&mut idt.segment_not_present, 11, Exception);
    install(&mut idt.stack_segment_fault, 12, Exception);
    install_in_place(&mut idt.general_protection_fault, 13);
    install(&mut idt.page_fault, 14, Exception);
    install(&mut idt.x87_floating_point, 16, Exception);
    install(&mut idt.alignment_check, 17, Exception);
    install(&mut idt.machine_check, 18, Exception);
    install(&mut idt.simd_floating_point, 19, Exception);
    for vector in 32..=255 {
        let stack = if vector == vectors::SYSTEM_CALL { SystemCall } else { Interrupt };
        let options = install(&mut idt[vector], vector, stack);
        if vector == vectors::SYSTEM_CALL {
            options.set_privilege_level(x86_64::PrivilegeLevel::Ring3);
        }
    }
    idt
});

fn install<F>(entry: &mut Entry<F>, vector: u8, stack: TrapStack) -> &mut EntryOptions {
    let options = install_in_place(entry, vector);
    // SAFETY: the TSS has a stack at each of these indices, and no two vectors that nest share one.
    unsafe { options.set_stack_index(stack as u16) }
}

/// Installs a vector without a stack of its own. Used for #GP, which a guarded access may raise in an NMI that
/// interrupted another #GP. The stack below such an access is not in use, and every other #GP causes a panic.
fn install_in_place<F>(entry: &mut Entry<F>, vector: u8) -> &mut EntryOptions {
    // SAFETY: the stub saves all registers, handles the vector's error code and ends with IRETQ.
    unsafe { entry.set_handler_addr(stub(vector)) }
}

/// Returns the low eight bytes of a vector's gate.
pub(crate) fn gate(vector: u8) -> u64 {
    let gates = (&raw const *IDT).cast::<[u64; 2]>();
    // SAFETY: the table has 256 gates of 16 bytes.
    let gate = unsafe { gates.add(usize::from(vector)) };
    // SAFETY: within the table, which no longer changes.
    unsafe { (*gate)[0] }
}

/// Loads the IDT.
pub(super) fn init() {
    IDT.load();
}
