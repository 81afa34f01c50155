//! The state and the events that are the input of the tracing hardware.

use crate::ExecMode;

/// The architectural state that the tracing hardware reads, at an instruction boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The instruction pointer as a linear address: the code segment's base is included.
    pub ip: u64,
    /// The code segment's base; ignored in 64-bit mode.
    pub cs_base: u64,
    /// CR3 as a MOV from it would read it.
    pub cr3: u64,
    /// Current privilege level, 0 to 3.
    pub cpl: u8,
    /// CS.L and CS.D.
    pub mode: ExecMode,
    /// RFLAGS.IF.
    pub iflag: bool,
}

impl Context {
    /// Returns the same state with `ip` as an offset in the code segment (RIP or EIP).
    pub(crate) const fn effective(self) -> Self {
        match self.mode {
            ExecMode::Bits64 => self,
            ExecMode::Bits16 | ExecMode::Bits32 => {
                Self { ip: self.ip.wrapping_sub(self.cs_base) & 0xffff_ffff, cs_base: 0, ..self }
            }
        }
    }
}

/// One instruction that retired. A REP string instruction is one instruction, regardless of its iterations.
///
/// An instruction that faults, and INT n, INT3, INT1 and INTO when they are delivered, are not a `Retired`: each is
/// a [`Delivery`].
#[derive(Clone, Copy, Debug)]
pub struct Retired<'a> {
    /// The state before the instruction; `ip` is the instruction's own address.
    pub before: Context,
    /// The state after the instruction; `ip` is the next instruction's address.
    pub after: Context,
    /// The instruction's bytes; further bytes may follow them and are ignored.
    pub bytes: &'a [u8],
    /// The time-stamp counter at its retirement.
    pub tsc: u64,
    /// PTWRITE's operand, zero-extended; MWAIT's hints (EAX) in bits 31:0 and extensions (ECX) in bits 63:32. Ignored
    /// for other instructions.
    pub operand: u64,
}

/// An event that transfers control without a branch instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryKind {
    /// An external, maskable interrupt.
    Interrupt,
    /// A non-maskable interrupt.
    Nmi,
    /// A fault: the instruction at `before.ip` did not complete.
    Fault,
    /// A trap: the instruction before `before.ip` completed.
    Trap,
    /// INT n, INT3, INT1 or INTO.
    SoftwareInterrupt,
}

impl DeliveryKind {
    pub(crate) const fn is_exception(self) -> bool {
        matches!(self, Self::Fault | Self::Trap)
    }
}

/// The delivery of an interrupt or exception.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// The kind of the event.
    pub kind: DeliveryKind,
    /// The vector.
    pub vector: u8,
    /// The state before the event. `ip` is the address that a FUP packet (the source of an event) gives: the next
    /// instruction's for interrupts, NMIs and traps, the instruction's own for faults and software interrupts.
    pub before: Context,
    /// The state at the first instruction of the handler.
    pub after: Context,
    /// The faulting address that a page fault left in CR2.
    pub cr2: Option<u64>,
    /// The time-stamp counter at the delivery.
    pub tsc: u64,
}

/// INIT.
#[derive(Clone, Copy, Debug)]
pub struct Init {
    /// The state at the next instruction, which does not execute.
    pub before: Context,
    /// The state after INIT, with execution at the reset vector: of the bootstrap processor. `None` for the others,
    /// which wait for a start-up interrupt.
    pub after: Option<Context>,
    /// The time-stamp counter.
    pub tsc: u64,
}
