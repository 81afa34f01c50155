//! The common part of branch records and precise samples: the debug store (DS), whose memory the processor writes
//! through the page tables.

use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::intel::ds::{AreaPlan, DsArea, DsConfig, DsRefusal, DsRunning, DsUnit, Gate, Strictness};
use pugmark_kernel::lifecycle::StartError;

use super::linear::KernelLinear;
use crate::arch::{registers, traps};
use crate::plan::Plan;
use crate::session::SourceError;

/// The unit while it records.
pub(super) type StoreRunning = DsRunning<GuardedMsr, KernelLinear>;

/// Returns the unit, still off.
pub(super) fn detect() -> Result<DsUnit<GuardedMsr>, SourceError> {
    DsUnit::detect(this_processor, registers::msr()).map_err(SourceError::absent)
}

/// The unit with its memory and its configuration.
pub(super) struct Store {
    unit: DsUnit<GuardedMsr>,
    area: DsArea<KernelLinear>,
    config: DsConfig,
}

impl Store {
    /// Allocates the memory.
    pub(super) fn allocate(
        unit: DsUnit<GuardedMsr>,
        memory: &AreaPlan,
        config: DsConfig,
        plan: &Plan,
    ) -> Result<Self, SourceError> {
        let area = DsArea::allocate(KernelLinear, unit.capabilities(), memory, Strictness::Strict)
            .map_err(SourceError::failed)?;
        Ok(Self { unit, area, config: config.gate(Gate(traps::gate(plan.vector()))) })
    }

    pub(super) fn start(self) -> Result<StoreRunning, SourceError> {
        self.unit.start(&self.config, self.area).map_err(|failed| not_started(failed.error()))
    }
}

/// Makes the error that the debug store did not start.
pub(super) fn not_started(error: StartError<DsRefusal>) -> SourceError {
    let is_refusal = matches!(error, StartError::Refused(DsRefusal::Bts(_) | DsRefusal::Pebs(_)));
    SourceError::new(is_refusal, error)
}
