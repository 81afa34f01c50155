//! A counter whose overflow pauses Intel PT's trace, or resumes it.

use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{PmiSource, Requests};

use raw_cpuid::CpuId;

use crate::arch::registers;
use crate::session;

/// IA32_PMC0, IA32_PERFEVTSEL0, IA32_PERF_GLOBAL_CTRL.
const PMC0: u32 = 0xc1;
const PERFEVTSEL0: u32 = 0x186;
const GLOBAL_CTRL: u32 = 0x38f;

/// Branch instructions retired, at all levels, with an interrupt at the overflow; enabled.
///
/// Source: SDM vol. 3, Performance Monitoring, "Pre-defined Architectural Performance Events"; vol. 2, CPUID,
/// "Architectural Performance Monitoring Leaf".
const BRANCHES: u64 = 0xc4 | USR | OS | INT | EN;
const USR: u64 = 1 << 16;
const OS: u64 = 1 << 17;
const INT: u64 = 1 << 20;
const EN: u64 = 1 << 22;

/// General-purpose counter 0.
pub(super) struct Toggle {
    /// Numbers of branches after which the trace is paused and resumed.
    periods: [u32; 2],
}

impl Toggle {
    /// Returns `None` if this processor has no such counter.
    pub(super) fn new(periods: [u32; 2]) -> Option<Self> {
        let counters = CpuId::new().get_performance_monitoring_info()?;
        let there = counters.version_id() >= 2 && counters.number_of_counters() > 0;
        there.then_some(Self { periods })
    }

    /// Starts counting towards the first pause.
    pub(super) fn start(&mut self) -> Result<(), GeneralProtection> {
        write(PERFEVTSEL0, 0)?;
        self.count(0)?;
        write(GLOBAL_CTRL, 1)?;
        write(PERFEVTSEL0, BRANCHES)
    }

    pub(super) fn stop(self) -> Result<(), GeneralProtection> {
        write(PERFEVTSEL0, 0)
    }

    fn count(&self, which: usize) -> Result<(), GeneralProtection> {
        // A write sets the counter to the sign-extended lower half of the value.
        write(PMC0, u64::from(self.periods[which].wrapping_neg()))
    }
}

impl PmiSource for Toggle {
    fn status(&self) -> Requests {
        Requests::in_global_status(1)
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        write(PERFEVTSEL0, 0)
    }

    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection> {
        if seen.is_empty() {
            return Ok(false);
        }
        let pauses = !session::gate().is_closed();
        if pauses {
            session::pause()?
        } else {
            session::resume()?
        }
        self.count(usize::from(pauses))?;
        Ok(true)
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        write(PERFEVTSEL0, BRANCHES)
    }
}

fn write(register: u32, value: u64) -> Result<(), GeneralProtection> {
    // SAFETY: nothing else uses this counter while Intel PT is the source, and it writes to no memory.
    unsafe { registers::msr().wrmsr(register, value) }
}
