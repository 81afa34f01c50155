//! The steps by which a caller reports transactions.

use crate::Context;

/// A change of the transactional state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionChange {
    /// The outermost XBEGIN or XACQUIRE: execution is transactional from this instruction on.
    Begin,
    /// The outermost XEND or XRELEASE.
    Commit,
    /// XABORT, or an abort for any other reason: control continues at the fallback handler (RTM) or at the XACQUIRE
    /// (HLE).
    Abort,
}

/// A step that changes the transactional state.
#[derive(Clone, Copy, Debug)]
pub struct TransactionStep {
    /// The change.
    pub change: TransactionChange,
    /// The state before the instruction that changes it; for an abort for another reason than XABORT, before the
    /// instruction that would have executed next.
    pub before: Context,
    /// The state after the step: for an abort at the fallback address.
    pub after: Context,
    /// The time-stamp counter.
    pub tsc: u64,
}
