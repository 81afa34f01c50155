//! The interface of a processor's tracing units.

use crate::branch::Decoded;
use crate::intel::IntelViolations;
use crate::intel::debugctl::DebugCtl;
use crate::intel::ds::Ds;
use crate::intel::lbr::Stack;
use crate::intel::perfmon::Perfmon;
use crate::intel::taken::Taken;
use crate::{Delivery, GeneralProtection, PhysMemory, Retired};

/// The state that the units of one processor share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) perfmon: Perfmon,
    pub(crate) debugctl: DebugCtl,
    pub(crate) ds: Ds,
    pub(crate) last_branches: Stack,
    pub(crate) violations: IntelViolations,
}

/// The shared state, and the memory that the processor accesses.
pub(crate) struct Bus<'a> {
    pub(crate) mem: &'a mut dyn PhysMemory,
    pub(crate) shared: &'a mut Shared,
}

impl Bus<'_> {
    /// Raises a PMI: sets these bits of IA32_PERF_GLOBAL_STATUS and sends the PMI on its way.
    pub(crate) fn signal(&mut self, status: u64) {
        let Shared { perfmon, debugctl, .. } = self.shared;
        perfmon.signal(status, debugctl);
    }
}

/// What is known of an instruction that retired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) decoded: Decoded,
    /// The branch that it took, if it took one.
    pub(crate) taken: Option<Taken>,
    /// Whether it is a branch that did not go where it was predicted to go.
    pub(crate) mispredicted: bool,
}

/// A tracing unit: its MSRs, and what it does when instructions retire.
pub(crate) trait TracingUnit {
    /// Whether `number` is one of its MSRs.
    fn owns_msr(&self, number: u32) -> bool;

    fn read_msr(&self, number: u32, shared: &Shared) -> Result<u64, GeneralProtection>;

    /// Writes one of its MSRs; `at` is the WRMSR.
    fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        at: &Retired,
        bus: &mut Bus,
    ) -> Result<(), GeneralProtection>;

    /// Whether the unit must see every instruction now.
    fn steps(&self, shared: &Shared) -> bool;

    fn retire(&mut self, retired: &Retired, seen: &Seen, bus: &mut Bus);

    fn deliver(&mut self, delivery: &Delivery, taken: &Taken, bus: &mut Bus);
}
