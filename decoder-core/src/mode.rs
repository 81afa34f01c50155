//! Execution modes.
//!
//! ```
//! use pugmark_decoder_core::{insn::decode, mode::ExecMode};
//!
//! // The same bytes are one instruction in 64-bit mode, REX.W NOP, and two in 32-bit mode: DEC EAX, NOP.
//! let length = |mode| decode(&[0x48, 0x90], mode, 0x1000).map(|insn| insn.len);
//! assert_eq!((length(ExecMode::Bits64), length(ExecMode::Bits32)), (Ok(2), Ok(1)));
//! ```

/// The default width of operands and addresses. It determines how bytes are decoded to instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExecMode {
    /// CS.D = 0, CS.L = 0.
    Bits16,
    /// CS.D = 1, CS.L = 0.
    Bits32,
    /// CS.L = 1 in IA-32e mode.
    Bits64,
}
