//! Exceptions of the guest's processor, and the limits of the emulation.

use core::fmt;

use super::cpu::dr6;

/// The vectors that the processor itself uses.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "Exception and Interrupt Vectors".
pub mod vector {
    /// `#DE`, divide error.
    pub const DIVIDE_ERROR: u8 = 0;
    /// `#DB`, debug.
    pub const DEBUG: u8 = 1;
    /// Non-maskable interrupt.
    pub const NMI: u8 = 2;
    /// `#BP`, breakpoint (INT3).
    pub const BREAKPOINT: u8 = 3;
    /// `#OF`, overflow (INTO).
    pub const OVERFLOW: u8 = 4;
    /// `#UD`, invalid opcode.
    pub const INVALID_OPCODE: u8 = 6;
    /// `#DF`, double fault.
    pub const DOUBLE_FAULT: u8 = 8;
    /// `#TS`, invalid TSS.
    pub const INVALID_TSS: u8 = 10;
    /// `#NP`, segment not present.
    pub const SEGMENT_NOT_PRESENT: u8 = 11;
    /// `#SS`, stack-segment fault.
    pub const STACK_FAULT: u8 = 12;
    /// `#GP`, general protection.
    pub const GENERAL_PROTECTION: u8 = 13;
    /// `#PF`, page fault.
    pub const PAGE_FAULT: u8 = 14;
    /// `#MC`, machine check.
    pub const MACHINE_CHECK: u8 = 18;
    /// `#VE`, virtualization exception.
    pub const VIRTUALIZATION: u8 = 20;
    /// `#CP`, control protection.
    pub const CONTROL_PROTECTION: u8 = 21;
}

/// An exception that the processor raises, with the state that its delivery leaves for the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The vector.
    pub vector: u8,
    /// The error code, if the vector pushes one.
    pub error_code: Option<u32>,
    /// The linear address that a page fault puts into CR2.
    pub cr2: Option<u64>,
    /// The bits that a debug exception sets in DR6 (B0–B3, BD, BS).
    pub dr6: u64,
}

/// The point at which an exception is reported, relative to its instruction.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "Exception Classifications".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionKind {
    /// Before the instruction: the instruction's own address is pushed.
    Fault,
    /// After the instruction: the next instruction's address is pushed.
    Trap,
    /// The pushed address may be meaningless.
    Abort,
}

impl Exception {
    /// Makes an exception from an intercept: `error_code` is used for the vectors that push one, `address` for the page
    /// fault. A debug exception made in this way sets no bit of DR6.
    pub const fn from_intercept(vector: u8, error_code: u32, address: u64) -> Self {
        let error_code = if pushes_error_code(vector) { Some(error_code) } else { None };
        let cr2 = if vector == vector::PAGE_FAULT { Some(address) } else { None };
        Self { vector, error_code, cr2, dr6: 0 }
    }

    /// Returns `#UD`.
    pub const fn invalid_opcode() -> Self {
        Self::from_intercept(vector::INVALID_OPCODE, 0, 0)
    }

    /// Returns `#GP(code)`.
    pub const fn general_protection(code: u32) -> Self {
        Self::from_intercept(vector::GENERAL_PROTECTION, code, 0)
    }

    /// Returns `#SS(code)`.
    pub const fn stack_fault(code: u32) -> Self {
        Self::from_intercept(vector::STACK_FAULT, code, 0)
    }

    /// Returns `#NP(code)`.
    pub const fn segment_not_present(code: u32) -> Self {
        Self::from_intercept(vector::SEGMENT_NOT_PRESENT, code, 0)
    }

    /// Returns `#TS(code)`.
    pub const fn invalid_tss(code: u32) -> Self {
        Self::from_intercept(vector::INVALID_TSS, code, 0)
    }

    /// Returns `#PF(code)` at the linear `address`.
    pub const fn page_fault(code: u32, address: u64) -> Self {
        Self::from_intercept(vector::PAGE_FAULT, code, address)
    }

    /// Returns `#DF(0)`.
    pub const fn double_fault() -> Self {
        Self::from_intercept(vector::DOUBLE_FAULT, 0, 0)
    }

    /// Returns a `#DB` that reports `conditions` in DR6.
    pub const fn debug(conditions: u64) -> Self {
        Self { vector: vector::DEBUG, error_code: None, cr2: None, dr6: conditions }
    }

    /// Returns the `#DB` for a guest that steps itself: DR6.BS.
    pub const fn single_step() -> Self {
        Self::debug(dr6::BS)
    }

    /// Returns whether the exception is a fault, a trap or an abort. A debug exception counts as a fault only for a
    /// general detect condition (DR6.BD). An instruction breakpoint is a fault too, but it cannot be distinguished from
    /// a data breakpoint here; the delivery of both pushes RF unchanged.
    pub const fn kind(&self) -> ExceptionKind {
        match self.vector {
            vector::DEBUG if self.dr6 & dr6::BD != 0 => ExceptionKind::Fault,
            vector::DEBUG | vector::BREAKPOINT | vector::OVERFLOW => ExceptionKind::Trap,
            vector::DOUBLE_FAULT | vector::MACHINE_CHECK => ExceptionKind::Abort,
            _ => ExceptionKind::Fault,
        }
    }
}

/// Returns whether the delivery of `vector` pushes an error code.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "Protected-Mode Exceptions and Interrupts".
const fn pushes_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

/// The reason why an access, an instruction or a delivery did not take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestError {
    /// A fault of the guest itself, to be delivered.
    Exception(Exception),
    /// Something that is not emulated: the monitor must stop the guest and report it.
    Unsupported(Unsupported),
}

/// Features that the monitor does not emulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// An event goes through a task gate.
    TaskGate {
        /// The event's vector.
        vector: u8,
    },
    /// IRET with RFLAGS.NT set outside long mode, which returns to another task.
    TaskReturn {
        /// RIP of the IRET.
        rip: u64,
    },
    /// An event or instruction in, or a return to, virtual-8086 mode.
    Virtual8086 {
        /// RIP of the instruction.
        rip: u64,
    },
    /// The monitor does not emulate the instruction.
    Instruction {
        /// RIP of the instruction.
        rip: u64,
    },
}

impl From<Exception> for GuestError {
    fn from(exception: Exception) -> Self {
        Self::Exception(exception)
    }
}

impl From<Unsupported> for GuestError {
    fn from(unsupported: Unsupported) -> Self {
        Self::Unsupported(unsupported)
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TaskGate { vector } => {
                write!(f, "vector {vector:#x} has a task gate: the monitor cannot switch tasks")
            }
            Self::TaskReturn { rip } => {
                write!(f, "the IRET at {rip:#x} returns to another task: the monitor cannot switch tasks")
            }
            Self::Virtual8086 { rip } => {
                write!(f, "virtual-8086 mode at {rip:#x}, which the monitor cannot emulate")
            }
            Self::Instruction { rip } => {
                write!(f, "the monitor has to emulate the instruction at {rip:#x} and cannot")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn what_cannot_be_emulated_is_reported_with_its_address() {
        for (unsupported, text) in [
            (
                Unsupported::TaskGate { vector: 8 },
                "vector 0x8 has a task gate: the monitor cannot switch tasks",
            ),
            (
                Unsupported::TaskReturn { rip: 0x20 },
                "the IRET at 0x20 returns to another task: the monitor cannot switch tasks",
            ),
            (
                Unsupported::Virtual8086 { rip: 0x30 },
                "virtual-8086 mode at 0x30, which the monitor cannot emulate",
            ),
            (
                Unsupported::Instruction { rip: 0x40 },
                "the monitor has to emulate the instruction at 0x40 and cannot",
            ),
        ] {
            assert_eq!(unsupported.to_string(), text);
        }
    }
}
