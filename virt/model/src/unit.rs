//! What every tracing unit of a processor does.

use crate::branch::Decoded;
use crate::perfmon::Perfmon;
use crate::{Delivery, GeneralProtection, PhysMemory, Retired, Violations};

/// What the units of one processor share.
pub(crate) struct Bus<'a> {
    pub(crate) mem: &'a mut dyn PhysMemory,
    pub(crate) perfmon: &'a mut Perfmon,
    pub(crate) violations: &'a mut Violations,
}

/// A tracing unit: its MSRs, and what it does when instructions retire.
pub(crate) trait TracingUnit {
    /// Whether `number` is one of its MSRs.
    fn owns_msr(&self, number: u32) -> bool;

    fn read_msr(&mut self, number: u32) -> Result<u64, GeneralProtection>;

    /// `at` is the WRMSR.
    fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        at: &Retired,
        bus: &mut Bus,
    ) -> Result<(), GeneralProtection>;

    /// It must see every instruction now.
    fn steps(&self) -> bool;

    fn retire(&mut self, retired: &Retired, decoded: Decoded, bus: &mut Bus);

    fn deliver(&mut self, delivery: &Delivery, bus: &mut Bus);
}
