//! A program: sections of bytes, and each instruction's effect on control flow.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pugmark_model::ExecMode;

use crate::{ProgramShape, generate, layout};

/// A program as bytes, with the meaning of each instruction.
#[derive(Debug)]
pub struct Program {
    pub(crate) sections: Vec<Section>,
    pub(crate) functions: Vec<Function>,
    pub(crate) instructions: HashMap<u64, Instruction>,
    pub(crate) entries: EntryPoints,
}

/// A contiguous section of code.
#[derive(Debug, Clone)]
pub struct Section {
    /// The address of the first byte.
    pub base: u64,
    /// The code, with INT3 between the functions.
    pub bytes: Vec<u8>,
}

/// A function's place and level.
#[derive(Debug, Clone)]
pub struct Function {
    /// The addresses of the first and the last byte.
    pub range: RangeInclusive<u64>,
    /// The code that runs the function.
    pub level: CodeLevel,
}

/// The code that runs a function, and the section that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeLevel {
    /// The kernel: privilege level 0, upper half of the address space.
    Kernel,
    /// The user's program: privilege level 3.
    User,
    /// A library: privilege level 3, far away from the program.
    Library,
    /// 32-bit code of the user: privilege level 3, reached by far calls.
    Compat,
}

impl CodeLevel {
    /// All levels.
    pub(crate) const ALL: [Self; 4] = [Self::Kernel, Self::User, Self::Library, Self::Compat];

    /// Returns the base address of the level's section.
    pub(crate) const fn base(self) -> u64 {
        match self {
            Self::Kernel => 0xffff_ffff_8100_0000,
            Self::User => 0x0000_5555_5541_3000,
            Self::Library => 0x0000_7fff_f7a2_8000,
            Self::Compat => 0x0804_8000,
        }
    }

    /// Returns the mode in which the level's bytes are decoded.
    pub(crate) const fn mode(self) -> ExecMode {
        match self {
            Self::Compat => ExecMode::Bits32,
            _ => ExecMode::Bits64,
        }
    }
}

/// The entry points of a program.
#[derive(Debug, Clone, Default)]
pub(crate) struct EntryPoints {
    /// The first instruction.
    pub(crate) start: u64,
    /// The first instruction of user code.
    pub(crate) user: u64,
    /// The entry point of SYSCALL.
    pub(crate) syscall: u64,
    /// Handlers of interrupts and exceptions, selected by the vector.
    pub(crate) handlers: Vec<u64>,
    /// The handler of NMIs, which turns tracing off and on.
    pub(crate) nmi: u64,
}

/// The effect of a program's WRMSR on tracing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracingSwitch {
    /// Sets IA32_RTIT_CTL.TraceEn.
    On,
    /// Clears IA32_RTIT_CTL.TraceEn.
    Off,
}

/// One instruction.
#[derive(Debug, Clone)]
pub struct Instruction {
    /// Length in bytes.
    pub len: usize,
    pub(crate) flow: Flow,
}

/// The effect of an instruction on control flow.
#[derive(Debug, Clone)]
pub(crate) enum Flow {
    /// Continues with the next instruction.
    Next,
    /// Continues with the next instruction, or faults first.
    MayFault,
    /// A repeated string instruction: continues, or is interrupted first.
    Rep,
    /// A conditional branch, taken in `taken` of 256 cases.
    Cond { target: u64, taken: u8 },
    /// The conditional branch that ends a recursion if it is taken.
    EndRecursion { target: u64 },
    /// JMP rel.
    Jump(u64),
    /// CALL rel. The target may be the next instruction.
    Call(u64),
    /// CALL rel to the next instruction, which pops the return address.
    CallNext,
    /// JMP r/m, or a RET used as a jump, to one of these addresses.
    IndirectJump(Vec<u64>),
    /// JMP r/m that discards frames and continues after an earlier call.
    Unwind,
    /// CALL r/m.
    IndirectCall(Vec<u64>),
    /// RET.
    Return,
    /// CALL far to one of these addresses, in this mode.
    FarCall(Vec<u64>, ExecMode),
    /// RET far.
    FarReturn,
    /// JMP far.
    FarJump(u64),
    /// SYSCALL.
    Syscall,
    /// SYSRET.
    Sysret,
    /// IRET from a handler.
    Iret,
    /// IRET that enters user code for the first time.
    EnterUser,
    /// INT n, INT3, INT1.
    SoftwareInterrupt(u8),
    /// UD2, which the handler skips.
    Undefined,
    /// MOV to CR3.
    MovCr3,
    /// STI.
    Sti,
    /// CLI.
    Cli,
    /// PTWRITE.
    Ptwrite,
    /// WRMSR of IA32_RTIT_CTL.
    Wrmsr(TracingSwitch),
}

impl Program {
    /// Generates the program for `seed`.
    #[must_use]
    pub fn generate(seed: u64, shape: &ProgramShape) -> Self {
        layout::lay_out(generate::generate(seed, shape))
    }

    /// Returns the code.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Returns the functions, in no particular order.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the address of the first instruction: a WRMSR that turns tracing on.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.entries.start
    }

    /// Iterates over the instructions with their addresses, in no particular order.
    pub fn instructions(&self) -> impl Iterator<Item = (u64, &Instruction)> {
        self.instructions.iter().map(|(address, instruction)| (*address, instruction))
    }

    /// Returns the bytes from `address` to the end of its section, or nothing if no section holds `address`.
    #[must_use]
    pub fn bytes_at(&self, address: u64) -> &[u8] {
        self.sections
            .iter()
            .find_map(|section| {
                section.bytes.get(usize::try_from(address.checked_sub(section.base)?).ok()?..)
            })
            .unwrap_or(&[])
    }
}
