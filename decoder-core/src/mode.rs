//! Execution modes.

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
