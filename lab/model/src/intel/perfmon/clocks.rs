//! The clocks that counters count.
//!
//! They are the clocks of Intel PT's packets: reference clocks advance with the TSC, core and bus clocks in their ratio
//! to it. From one instruction to the next the clocks count at the privilege level of the second. While the processor
//! is halted they stop, and they start with the first instruction after a write of a counter's control.

use crate::intel::unit::SharedState;
use crate::intel::{IntelProfile, IntelSettings};

#[derive(Debug)]
pub(super) struct Clocks {
    core: ClockRatio,
    bus: ClockRatio,
    last: Option<LastInstruction>,
}

/// A count of clocks that have passed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elapsed {
    pub(super) reference: u64,
    pub(super) core: u64,
    pub(super) bus: u64,
}

/// A clock's frequency over that of the TSC.
#[derive(Debug)]
struct ClockRatio {
    clocks: u64,
    ticks: u64,
    /// The remainder of the last clock, in units of `1 / ticks`.
    remainder: u64,
}

impl ClockRatio {
    fn pass(&mut self, ticks: u64) -> u64 {
        let scaled = ticks.saturating_mul(self.clocks).saturating_add(self.remainder);
        self.remainder = scaled % self.ticks;
        scaled / self.ticks
    }
}

/// The time up to which the clocks have been counted.
#[derive(Clone, Copy, Debug)]
struct LastInstruction {
    tsc: u64,
    /// [`super::Perfmon::changes`]: if it differs, the counters may have been stopped.
    changes: u64,
}

impl Clocks {
    pub(super) fn new(profile: &IntelProfile, settings: IntelSettings) -> Self {
        let ticks = profile.non_turbo_ratio.max(1).into();
        let core = settings.core_ratio.unwrap_or(profile.non_turbo_ratio).into();
        Self {
            core: ClockRatio { clocks: core, ticks, remainder: 0 },
            bus: ClockRatio { clocks: 1, ticks, remainder: 0 },
            last: None,
        }
    }

    /// Returns the clocks since the last instruction.
    pub(super) fn pass(&mut self, tsc: u64, shared: &SharedState) -> Elapsed {
        let changes = shared.perfmon.changes();
        let last = self.last.replace(LastInstruction { tsc, changes });
        let since = last.filter(|last| last.changes == changes);
        let reference = since.map_or(0, |last| tsc.saturating_sub(last.tsc));
        Elapsed { reference, core: self.core.pass(reference), bus: self.bus.pass(reference) }
    }

    /// Restarts the count at this time: the time before is not counted.
    pub(super) fn begin(&mut self, tsc: u64, shared: &SharedState) {
        self.last = Some(LastInstruction { tsc, changes: shared.perfmon.changes() });
    }

    /// Stops the count until the next instruction.
    pub(super) fn stop(&mut self) {
        self.last = None;
    }
}
