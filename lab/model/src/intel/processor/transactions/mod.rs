//! The effects of transactions (TSX) on Intel PT.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Intel Transactional Synchronization Extensions (Intel TSX)"; vol. 1,
//! Programming with Intel Transactional Synchronization Extensions; vol. 2, "CPUID", leaf 07H (HLE and RTM).

use super::IntelProcessor;
use crate::intel::transaction::{TransactionChange, TransactionStep};
use crate::intel::unit::Bus;
use crate::{CpuidResult, PhysMemory};

/// CPUID.07H.0:EBX.HLE and RTM.
const HLE_AND_RTM: u32 = 1 << 4 | 1 << 11;

/// Adds HLE and RTM to the processor's features.
pub(super) const fn with_tsx(leaf: u32, subleaf: u32, answer: CpuidResult) -> CpuidResult {
    match (leaf, subleaf) {
        (7, 0) => CpuidResult { ebx: answer.ebx | HLE_AND_RTM, ..answer },
        _ => answer,
    }
}

impl IntelProcessor {
    /// Makes the processor enumerate TSX (HLE and RTM). The caller then reports each change of the transactional state
    /// by [`IntelProcessor::change_transaction`].
    #[must_use]
    pub fn with_tsx(mut self) -> Self {
        self.tsx = true;
        self
    }

    /// Reports that a transaction begins, commits or aborts, while
    /// [`needs_each_instruction`](crate::Processor::needs_each_instruction) returns true. Nested transactions are not
    /// reported. Units other than Intel PT ignore the report.
    ///
    /// An instruction that begins or commits a transaction is reported here first, and then retires. An instruction
    /// that aborts does not retire. An interrupt or exception in a transaction is an abort, and then the delivery of
    /// the interrupt from the fallback address.
    pub fn change_transaction(&mut self, step: &TransactionStep, mem: &mut dyn PhysMemory) {
        self.pt.change_transaction(step, &mut Bus { mem, shared: &mut self.shared });
        if step.change == TransactionChange::Abort {
            self.last_ip = step.before.ip;
        }
    }
}

#[cfg(test)]
mod tests;
