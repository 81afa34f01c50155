//! Delivers events through the guest's IDT and TSS.

use super::cpu::{Cpu, Mode, dr6, dr7, rflags};
use super::exception::{Exception, ExceptionKind, GuestError, Unsupported, vector};
use super::memory::GuestMemory;

mod long;
mod protected;
mod real;

/// An event to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A maskable interrupt that was acknowledged. `Cpu::rip` is the next instruction.
    ///
    /// If the interrupt comes between two iterations of a repeated string instruction, set RF in `Cpu::rflags` first,
    /// because the pushed RFLAGS has RF set then.
    Interrupt {
        /// Its vector.
        vector: u8,
    },
    /// A non-maskable interrupt. It blocks further NMIs until an IRET.
    Nmi,
    /// An exception. `Cpu::rip` is the faulting instruction, or the next one after a trap.
    Exception(Exception),
    /// An INT n, INT3, INTO or INT1. `Cpu::rip` is the instruction itself.
    Software {
        /// Its vector.
        vector: u8,
        /// Which instruction it is.
        kind: SoftwareKind,
        /// Its length in bytes.
        length: u8,
    },
}

/// Which instruction raised a software interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareKind {
    /// INT n.
    Int,
    /// INT3.
    Int3,
    /// INTO.
    Into,
    /// INT1: a privileged software exception, for which the gate's DPL is not checked.
    Int1,
}

impl Event {
    /// Returns the vector.
    pub const fn vector(&self) -> u8 {
        match self {
            Self::Interrupt { vector } | Self::Software { vector, .. } => *vector,
            Self::Nmi => vector::NMI,
            Self::Exception(exception) => exception.vector,
        }
    }

    /// Returns whether the event is the effect of an instruction, which has retired once the handler starts.
    pub const fn ends_instruction(&self) -> bool {
        matches!(self, Self::Software { .. })
    }
}

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
/// double fault. What an event does before its gate is read stays done: CR2 of a page fault, DR6 of a debug exception,
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
                // CR2 is set even if the fault becomes a double fault or comes in the delivery of one.
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

/// What a delivery pushes, and how its faults are marked.
struct EventFrame {
    vector: u8,
    error_code: Option<u32>,
    /// The gate's DPL must not be below the CPL.
    checks_dpl: bool,
    /// Bit 0 of the error code of a fault during the delivery: the event came from outside the program.
    ext: u32,
    return_rip: u64,
    rflags: u64,
}

impl EventFrame {
    fn new(cpu: &Cpu, event: &Event) -> Self {
        let mut frame = Self {
            vector: event.vector(),
            error_code: None,
            checks_dpl: false,
            ext: 1,
            return_rip: cpu.rip,
            rflags: cpu.rflags,
        };
        match event {
            Event::Interrupt { .. } | Event::Nmi => {}
            Event::Exception(exception) => {
                frame.error_code = exception.error_code;
                if exception.kind() == ExceptionKind::Fault {
                    frame.rflags |= rflags::RF;
                }
            }
            Event::Software { kind, length, .. } => {
                if *kind != SoftwareKind::Int1 {
                    frame.checks_dpl = true;
                    frame.ext = 0;
                }
                frame.return_rip = cpu.rip_after(*length);
                frame.rflags &= !rflags::RF;
            }
        }
        frame
    }

    /// Returns the error code that names the gate.
    fn gate_error(&self) -> u32 {
        u32::from(self.vector) * 8 + 2 + self.ext
    }

    /// Returns RFLAGS for the handler. AC is not changed.
    fn handler_rflags(&self, clears_if: bool) -> u64 {
        let cleared = rflags::TF | rflags::NT | rflags::RF | rflags::VM;
        self.rflags & !cleared & !if clears_if { rflags::IF } else { 0 }
    }
}

/// Does what happens to the processor before the IDT is read.
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
