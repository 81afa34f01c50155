//! Delivers events through the guest's IDT and TSS.

use super::cpu::{Cpu, Mode, dr6, dr7};
use super::event::Event;
use super::exception::{Exception, GuestError, Unsupported, vector};
use super::memory::GuestMemory;

mod frame;
mod handler_segment;
mod long;
mod protected;
mod real;

use frame::EventFrame;

/// The result of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The handler of this event starts: the event itself, or the exception that its delivery raised.
    Handler(Event),
    /// The delivery of a double fault faulted: the processor shuts down. Only CR2 has changed.
    Shutdown,
}

/// Delivers `event`: checks the gate, switches the stack, pushes the frame, and leaves `cpu` at the handler's first
/// instruction.
///
/// TF in the pushed RFLAGS is the guest's own. A fault during the delivery is delivered instead of the event, or as a
/// double fault. Effects of the event before its gate is read persist: CR2 of a page fault, DR6 of a debug exception,
/// the blocking of NMIs.
///
/// Errors: the guest needs something that is not emulated; `cpu` is unchanged.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "Exception and Interrupt Handling", "Exception and Interrupt
/// Handling in 64-bit Mode", "Interrupt 8—Double Fault Exception (#DF)"; SDM vol. 2, "INT n/INTO/INT3/INT1"; the
/// pushed RF: SDM vol. 3, Debug, Branch Profile, TSC, "Instruction-Breakpoint Exception Condition".
pub fn deliver<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    event: Event,
) -> Result<DeliveryOutcome, Unsupported> {
    let mut start = *cpu;
    let mut event = event;
    loop {
        begin(&mut start, &event);
        let mut after = start;
        match enter(&mut after, memory, &EventFrame::new(&start, &event)) {
            Ok(()) => {
                *cpu = after;
                return Ok(DeliveryOutcome::Handler(event));
            }
            Err(GuestError::Unsupported(unsupported)) => return Err(unsupported),
            Err(GuestError::Exception(second)) => {
                // CR2 is set even if the fault becomes a double fault or is raised during the delivery of one.
                start.cr2 = second.cr2.unwrap_or(start.cr2);
                match combine(&event, second) {
                    Some(next) => event = Event::Exception(next),
                    None => {
                        cpu.cr2 = start.cr2;
                        return Ok(DeliveryOutcome::Shutdown);
                    }
                }
            }
        }
    }
}

/// Applies the event's effects on the processor that precede the read of the IDT.
fn begin(cpu: &mut Cpu, event: &Event) {
    cpu.shadow = None;
    match event {
        Event::Nmi => cpu.nmi_blocked = true,
        Event::Exception(exception) => {
            if let Some(address) = exception.cr2 {
                cpu.cr2 = address;
            }
            if exception.vector == vector::DEBUG {
                if exception.dr6 != 0 {
                    cpu.dr6 = cpu.dr6 & !dr6::B | exception.dr6;
                }
                cpu.dr7 &= !dr7::GD;
            }
        }
        Event::Interrupt { .. } | Event::Software { .. } => {}
    }
}

fn enter<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    frame: &EventFrame,
) -> Result<(), GuestError> {
    match cpu.mode() {
        Mode::Bits64 | Mode::Compatibility => long::enter(cpu, memory, frame),
        Mode::Protected => protected::enter(cpu, memory, frame),
        Mode::Real => real::enter(cpu, memory, frame),
        Mode::Virtual8086 => Err(Unsupported::Virtual8086 { rip: cpu.rip }.into()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExceptionClass {
    Benign,
    Contributory,
    PageFault,
    DoubleFault,
}

/// Returns the exception to deliver after `second` was raised in the delivery of `first`; `None` means shutdown.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "Interrupt 8—Double Fault Exception (#DF)", the table
/// "Conditions for Generating a Double Fault".
fn combine(first: &Event, second: Exception) -> Option<Exception> {
    let first = match first {
        Event::Exception(exception) => class(exception.vector),
        Event::Interrupt { .. } | Event::Nmi | Event::Software { .. } => ExceptionClass::Benign,
    };
    match (first, class(second.vector)) {
        (ExceptionClass::DoubleFault, _) => None,
        (ExceptionClass::Contributory, ExceptionClass::Contributory)
        | (ExceptionClass::PageFault, ExceptionClass::Contributory | ExceptionClass::PageFault) => {
            Some(Exception::double_fault())
        }
        _ => Some(second),
    }
}

fn class(vector: u8) -> ExceptionClass {
    match vector {
        vector::DOUBLE_FAULT => ExceptionClass::DoubleFault,
        vector::PAGE_FAULT | vector::VIRTUALIZATION => ExceptionClass::PageFault,
        vector::DIVIDE_ERROR
        | vector::INVALID_TSS
        | vector::SEGMENT_NOT_PRESENT
        | vector::STACK_FAULT
        | vector::GENERAL_PROTECTION
        | vector::CONTROL_PROTECTION => ExceptionClass::Contributory,
        _ => ExceptionClass::Benign,
    }
}

#[cfg(test)]
mod tests;
