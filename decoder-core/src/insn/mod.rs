//! Decodes those properties of x86 instructions that a trace decoder needs: their length, their effect on control flow,
//! the target of a direct branch, and the trace events that they can cause. A trace has only what the code does not
//! show, so the decoder must read the code to know the instruction that each packet belongs to.
//!
//! ```
//! use pugmark_decoder_core::insn::{Class, decode};
//! use pugmark_decoder_core::mode::ExecMode;
//!
//! let jump = decode(&[0x74, 0x10, 0x90], ExecMode::Bits64, 0x1000)?;
//! assert_eq!((jump.len, jump.class, jump.target), (2, Class::CondJump, Some(0x1012)));
//! # Ok::<(), pugmark_decoder_core::insn::InsnError>(())
//! ```
//!
//! Decoding is one pass over the bytes, directed by one table of 256 entries for each opcode map. Operands are not
//! decoded. An encoding that the manual reserves inside a known opcode (LOCK where it is not allowed, VEX.vvvv that
//! must be 1111b) is accepted with its length, because a processor that executes it faults and the trace shows the
//! fault.
//!
//! Source: SDM vol. 2, "Instruction Format" and the appendix "Opcode Map"; for XOP and 3DNow! the AMD64
//! Architecture Programmer's Manual vol. 3; for REX2 and EVEX map 4 the Intel APX architecture specification.

mod decode;
mod fast;
mod group;
mod legacy;
#[cfg(test)]
mod tests;
mod vector;

use core::fmt;

use crate::mode::ExecMode;

/// The longest instruction, in bytes; a longer one is a fault (#GP).
///
/// Source: SDM vol. 2, "Instruction Format".
pub const MAX_LEN: usize = 15;

/// Decodes the instruction at the start of `bytes`. `ip` is its address, which affects only the target.
///
/// `bytes` may be longer than the instruction; [`MAX_LEN`] bytes are always enough.
///
/// Near branches in 64-bit mode are 64 bits wide and their displacement is 32 bits, even after an operand-size
/// prefix: Intel processors ignore it there (SDM vol. 2, "Jcc", "JMP", "CALL"). A target is truncated to 16 bits if the
/// operand size is 16, and to 32 bits outside 64-bit mode. In 16-bit code an `ip` above 0xffff can only be a linear
/// address that includes the segment's base; then the target is not truncated to 16 bits.
///
/// # Errors
/// [`InsnError`] if the bytes are not an instruction. Bytes after the instruction have no effect.
#[inline]
pub fn decode(bytes: &[u8], mode: ExecMode, ip: u64) -> Result<Insn, InsnError> {
    let window = bytes.first_chunk().filter(|_| mode == ExecMode::Bits64);
    match window.and_then(|window| fast::decode(window, ip)) {
        Some(insn) => Ok(insn),
        None => decode::decode(bytes, mode, ip),
    }
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Its length in bytes, 1 to [`MAX_LEN`].
    pub len: u8,
    /// Its effect on control flow.
    pub class: Class,
    /// Its name, if it can cause an event.
    pub op: Op,
    /// The address of the branch target: `Some` for direct near branches, which are [`Class::CondJump`],
    /// [`Class::NearJump`] and [`Class::NearCall`].
    pub target: Option<u64>,
}

impl Insn {
    /// Returns the address after the instruction, if it is at `ip`.
    #[must_use]
    #[inline]
    pub const fn next(&self, ip: u64) -> u64 {
        ip.wrapping_add(self.len as u64)
    }

    /// Returns true if it can write CR3, so that a PIP packet may belong to it: MOV to CR3 and far transfers (task
    /// switches, VM entries and exits).
    #[inline]
    pub(crate) const fn can_write_cr3(&self) -> bool {
        self.class.is_far() || matches!(self.op, Op::MovToCr3)
    }

    /// Returns true if it can change the current VMCS, so that a VMCS packet may belong to it: VMPTRLD and far
    /// transfers (VM entries and exits).
    #[inline]
    pub(crate) const fn can_change_vmcs(&self) -> bool {
        self.class.is_far() || matches!(self.op, Op::Vmptrld)
    }

    /// Returns true if a CFE packet of type IRET may belong to it: IRET and other returns from events or to user mode.
    #[inline]
    pub(crate) const fn can_be_iret(&self) -> bool {
        matches!(self.op, Op::Iret | Op::Eret | Op::Sysret | Op::Sysexit)
    }
}

/// The effect of an instruction on control flow, and its packet in the trace: a bit in a TNT packet (taken or not
/// taken), a TIP packet (target IP), or none.
///
/// Source: SDM vol. 3, Intel Processor Trace, "Change of Flow Instruction (COFI) Tracing".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Continues with the next instruction.
    Other,
    /// A conditional direct branch (Jcc, JrCXZ, LOOP, LOOPE, LOOPNE): one TNT bit.
    CondJump,
    /// A direct near JMP: nothing in the trace.
    NearJump,
    /// A direct near CALL: nothing in the trace.
    NearCall,
    /// An indirect near JMP (also JMPABS): a TIP.
    IndirectJump,
    /// An indirect near CALL: a TIP.
    IndirectCall,
    /// A near RET: a TIP, or a TNT bit if it is compressed.
    NearReturn,
    /// A far JMP: a TIP.
    FarJump,
    /// A far CALL, INT n and similar, SYSCALL, SYSENTER, VMCALL: a TIP, after a FUP if it is an interrupt.
    FarCall,
    /// A far RET, IRET, UIRET, ERETS, ERETU, SYSRET, SYSEXIT, RSM, VMLAUNCH, VMRESUME: a TIP.
    FarReturn,
    /// PTWRITE: a PTW packet; continues with the next instruction.
    Ptwrite,
}

impl Class {
    /// Returns true for a transfer that may change the code segment, the privilege level or the address space.
    #[must_use]
    #[inline]
    pub const fn is_far(self) -> bool {
        matches!(self, Self::FarJump | Self::FarCall | Self::FarReturn)
    }

    /// Returns true for a branch of any kind.
    #[must_use]
    #[inline]
    pub const fn is_branch(self) -> bool {
        !matches!(self, Self::Other | Self::Ptwrite)
    }
}

/// The instructions that can cause events, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Any other instruction.
    Other,
    /// Jcc, JrCXZ, LOOPcc.
    CondJump,
    /// JMP rel.
    Jump,
    /// CALL rel.
    Call,
    /// JMP r/m.
    IndirectJump,
    /// JMPABS (APX): a 64-bit target in the instruction, traced like an indirect jump.
    Jmpabs,
    /// CALL r/m.
    IndirectCall,
    /// RET.
    Return,
    /// JMP far.
    FarJump,
    /// CALL far.
    FarCall,
    /// RET far.
    FarReturn,
    /// INT n.
    IntN,
    /// INT3.
    Int3,
    /// INT1.
    Int1,
    /// INTO.
    Into,
    /// IRET, IRETD, IRETQ.
    Iret,
    /// SYSCALL.
    Syscall,
    /// SYSRET.
    Sysret,
    /// SYSENTER.
    Sysenter,
    /// SYSEXIT.
    Sysexit,
    /// UIRET.
    Uiret,
    /// ERETS or ERETU.
    Eret,
    /// RSM.
    Rsm,
    /// VMCALL, TDCALL, SEAMCALL: calls into the monitor.
    Vmcall,
    /// VMLAUNCH, VMRESUME, SEAMRET: transfers into the guest.
    VmEntry,
    /// VMPTRLD.
    Vmptrld,
    /// MOV to CR3.
    MovToCr3,
    /// PTWRITE.
    Ptwrite,
}

impl Op {
    /// Returns the class of the instruction.
    #[must_use]
    #[inline]
    pub(crate) const fn class(self) -> Class {
        match self {
            Self::Other | Self::Vmptrld | Self::MovToCr3 => Class::Other,
            Self::CondJump => Class::CondJump,
            Self::Jump => Class::NearJump,
            Self::Call => Class::NearCall,
            Self::IndirectJump | Self::Jmpabs => Class::IndirectJump,
            Self::IndirectCall => Class::IndirectCall,
            Self::Return => Class::NearReturn,
            Self::FarJump => Class::FarJump,
            Self::FarCall
            | Self::IntN
            | Self::Int3
            | Self::Int1
            | Self::Into
            | Self::Syscall
            | Self::Sysenter
            | Self::Vmcall => Class::FarCall,
            Self::FarReturn
            | Self::Iret
            | Self::Sysret
            | Self::Sysexit
            | Self::Uiret
            | Self::Eret
            | Self::Rsm
            | Self::VmEntry => Class::FarReturn,
            Self::Ptwrite => Class::Ptwrite,
        }
    }
}

/// The reason why bytes are not an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InsnError {
    /// The bytes end within the instruction; with more bytes they may be one.
    Truncated,
    /// No instruction begins with these bytes.
    Undefined,
    /// The instruction is longer than [`MAX_LEN`].
    TooLong,
}

impl fmt::Display for InsnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the bytes end within the instruction",
            Self::Undefined => "undefined opcode",
            Self::TooLong => "instruction longer than 15 bytes",
        })
    }
}

impl core::error::Error for InsnError {}
