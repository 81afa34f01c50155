//! Events that are delivered through the IDT.

use super::exception::{Exception, vector};

/// An event to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A maskable interrupt that was acknowledged. `Cpu::rip` is the next instruction.
    ///
    /// If the interrupt is delivered between two iterations of a repeated string instruction, set RF in `Cpu::rflags`
    /// first, because the pushed RFLAGS has RF set then.
    Interrupt {
        /// The vector.
        vector: u8,
    },
    /// A non-maskable interrupt. It blocks further NMIs until an IRET.
    Nmi,
    /// An exception. `Cpu::rip` is the faulting instruction, or the next one after a trap.
    Exception(Exception),
    /// An INT n, INT3, INTO or INT1. `Cpu::rip` is the instruction itself.
    Software {
        /// The vector.
        vector: u8,
        /// The instruction.
        kind: SoftwareKind,
        /// Length of the instruction in bytes.
        length: u8,
    },
}

/// The instruction that raised a software interrupt.
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

    /// Returns whether the event is the effect of an instruction, which retires before the handler starts.
    pub const fn ends_instruction(&self) -> bool {
        matches!(self, Self::Software { .. })
    }
}
