//! The last branch records (LBR): registers with the most recent taken branches, or with the calls that have not
//! returned.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::intel::lbr::{Branch as LbrEntry, LbrConfig, LbrRefusal, LbrRunning, LbrUnit};
use pugmark_kernel::lifecycle::{Absent, NotCurrent, StartError};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_protocol::{Branch, Last, Line};

use super::source::Source;
use crate::arch::registers;
use crate::arch::serial::say;
use crate::plan::Plan;
use crate::report::{Recorded, RecordingError, SessionReport};
use crate::session::{Prepared, Running, Serve, SourceError, Stopped};

/// Maximum number of records of any processor.
const MOST: usize = 32;

/// Last branch records: of all branches, then of the calls that have not returned.
pub(super) struct LastBranches;

impl Source for LastBranches {
    fn passes(&self, _: u32) -> u32 {
        2
    }

    fn prepare(&self, pass: u32, plan: &Plan) -> Result<Prepared, SourceError> {
        let calls = pass == 1;
        let unit = LbrUnit::detect(this_processor, registers::msr()).map_err(|absent| {
            // An emulator may not have the registers.
            let is_refusal = absent.is_missing() || matches!(absent, Absent::NotBacked(_));
            SourceError::new(is_refusal, absent)
        })?;
        plan.require("last branches", &[]).map_err(SourceError::refused)?;
        let config = LbrConfig::new().os(plan.os()).user(plan.user()).call_stack(calls);
        // Check now, before a session is announced.
        config.check(unit.capabilities()).map_err(|refusal| not_started(StartError::Refused(refusal)))?;
        Ok(Prepared::new(plan.delivery, move || {
            let running = unit.start(&config).map_err(|failed| not_started(failed.error()))?;
            Ok(RunningLbr { running, calls })
        }))
    }
}

fn not_started(error: StartError<LbrRefusal>) -> SourceError {
    SourceError::new(matches!(error, StartError::Refused(_)), error)
}

struct RunningLbr {
    running: LbrRunning<GuardedMsr>,
    calls: bool,
}

impl Running for RunningLbr {
    fn serve(&mut self, _: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection> {
        // This source never requests an interrupt.
        serve(&mut [])
    }

    fn stop(self: Box<Self>, _: &mut Handler) -> Result<Stopped, SourceError> {
        let Self { running, calls } = *self;
        let mut unit = running.stop().map_err(|failed| SourceError::does_not_stop(failed.fault))?;
        let mut memory = vec![LbrEntry::default(); MOST];
        let branches = match unit.last(&mut memory) {
            Ok(last) => last.to_vec(),
            Err(NotCurrent::Fault(fault)) => return Err(SourceError::does_not_stop(fault)),
            Err(outdated) => return Err(SourceError::failed(outdated.to_string())),
        };
        Ok(Stopped::new(LastRecords { calls, branches }, Loss::default()))
    }
}

struct LastRecords {
    calls: bool,
    /// The branches, newest first.
    branches: Vec<LbrEntry>,
}

impl Recorded for LastRecords {
    fn report(&self, report: &SessionReport<'_>) -> Result<(), RecordingError> {
        let &SessionReport { name, number: session, .. } = report;
        let &Self { calls, ref branches } = self;
        say(Line::Last(name, Last { session, calls, entries: branches.len() as u64 }));
        for &LbrEntry { from, to, .. } in branches {
            say(Line::Branch(name, Branch { session, from, to }));
        }
        report.say_code_and_losses(0);
        Ok(())
    }
}
