//! The interface of a processor's tracing units.

use crate::branch::DecodedInstruction;
use crate::intel::IntelViolations;
use crate::intel::debugctl::DebugCtl;
use crate::intel::ds::Ds;
use crate::intel::lbr::stack::LbrStack;
use crate::intel::pebs::blocks::PebsBlockItems;
use crate::intel::perfmon::Perfmon;
use crate::intel::taken_branch::TakenBranch;
use crate::{Delivery, GeneralProtection, PhysMemory, Retired};

/// The state that the units of one processor share.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) perfmon: Perfmon,
    pub(crate) debugctl: DebugCtl,
    pub(crate) ds: Ds,
    pub(crate) last_branches: LbrStack,
    /// A record that goes to Intel PT once all units have seen the instruction.
    pub(crate) traced_record: PebsBlockItems,
    pub(crate) violations: IntelViolations,
}

/// The shared state, and the memory that the processor accesses.
pub(crate) struct Bus<'a> {
    pub(crate) mem: &'a mut dyn PhysMemory,
    pub(crate) shared: &'a mut SharedState,
}

impl Bus<'_> {
    /// Raises a PMI: sets these bits of IA32_PERF_GLOBAL_STATUS and puts the PMI in flight.
    pub(crate) fn raise_pmi(&mut self, status: u64) {
        let SharedState { perfmon, debugctl, .. } = self.shared;
        perfmon.raise_pmi(status, debugctl);
    }
}

/// The properties of an instruction that retired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstructionInfo {
    pub(crate) decoded: DecodedInstruction,
    /// The branch that the instruction took, if any.
    pub(crate) taken: Option<TakenBranch>,
    /// The instruction is a mispredicted branch.
    pub(crate) mispredicted: bool,
}

/// A tracing unit: its MSRs, and its reaction to retired instructions.
pub(crate) trait TracingUnit {
    /// Returns true if `number` is one of its MSRs.
    fn owns_msr(&self, number: u32) -> bool;

    fn read_msr(&self, number: u32, shared: &SharedState) -> Result<u64, GeneralProtection>;

    /// Writes one of its MSRs; `at` is the WRMSR.
    fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        at: &Retired,
        bus: &mut Bus,
    ) -> Result<(), GeneralProtection>;

    /// Returns true if the unit must see every instruction now.
    fn needs_each_instruction(&self, shared: &SharedState) -> bool;

    /// Returns whether the unit sees an instruction that is reported now, for any unit.
    fn sees_instructions(&self, shared: &SharedState) -> bool {
        self.needs_each_instruction(shared)
    }

    fn retire(&mut self, retired: &Retired, info: &InstructionInfo, bus: &mut Bus);

    fn deliver(&mut self, delivery: &Delivery, taken: &TakenBranch, bus: &mut Bus);
}
