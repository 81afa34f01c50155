//! Runs each workload once per pass of the source, and judges the recordings.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use pugmark_boot::command_line::CommandLine;
use pugmark_boot::symbols::Symbols;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_protocol::{Fault, Line};
use x86_64::instructions::interrupts;

use crate::arch::paging::{self, RevokedFault};
use crate::arch::processors;
use crate::arch::serial::say;
use crate::plan::Plan;
use crate::report::{RecordingError, ReportOptions, SessionReport};
use crate::session::{self, Finished, Prepared, SourceError};
use crate::sources::Source;
use crate::workload::{Make, Mismatch, Workload};
use crate::workloads;

/// Runs workloads, one after another.
pub(crate) struct Runner<'s> {
    symbols: &'s Symbols<'s>,
    source: &'s dyn Source,
    options: ReportOptions,
    /// Number of rounds of samples that the command line requests.
    rounds: u32,
    /// Number of sessions so far.
    sessions: u16,
}

/// The reason why a workload failed.
pub(crate) enum RunError {
    /// The workload's own result is wrong.
    Workload(Mismatch),
    Source(SourceError),
    Interrupt(GeneralProtection),
    /// The processor reported operational errors.
    Operational(u64),
    /// The unit was off although it should have been on.
    LeftOff(u64),
    Recording(RecordingError),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(mismatch) => mismatch.fmt(f),
            Self::Source(error) => error.fmt(f),
            Self::Interrupt(fault) => write!(f, "in the interrupt handler: {fault}"),
            Self::Operational(count) => write!(f, "{count} operational errors"),
            Self::LeftOff(count) => write!(f, "the driver left the unit off {count} times"),
            Self::Recording(error) => error.fmt(f),
        }
    }
}

impl<'s> Runner<'s> {
    /// Prepares to run workloads of a kernel with these symbols, as the command line requests.
    pub(crate) fn new(
        symbols: &'s Symbols<'s>,
        source: &'s dyn Source,
        command_line: &CommandLine<'_>,
    ) -> Self {
        let &CommandLine { dump, no_decode, expect_overflow: overflows, rounds, .. } = command_line;
        Self { symbols, source, options: ReportOptions { dump, no_decode, overflows }, rounds, sessions: 0 }
    }

    /// Runs a workload, recorded if the processor can, and reports the result.
    ///
    /// # Errors
    /// If the workload's result or the recording is wrong.
    pub(crate) fn run(&mut self, name: &str, make: Make) -> Result<(), RunError> {
        for pass in 0..self.source.passes(self.rounds) {
            let workload = &mut *make();
            let plan = workload.plan();
            let finished = self
                .source
                .prepare(pass, &plan)
                .and_then(|prepared| self.record(name, prepared, &plan, workload));
            match finished {
                Ok(finished) => self.judge(name, self.sessions, &plan, &finished, workload)?,
                Err(error) if error.is_refusal() => return run_unrecorded(name, &error, workload),
                Err(error) => return Err(RunError::Source(error)),
            }
        }
        Ok(())
    }

    /// Returns true if a workload runs on all processors at the same time: there are several, the workload supports it,
    /// and the source records it in one pass.
    pub(crate) fn runs_on_all(&self, name: &str) -> bool {
        processors::count() > 1 && workloads::may_run_on_all(name) && self.source.passes(self.rounds) == 1
    }

    /// Runs a workload on all processors at the same time, each with a session of its own, and passes the results to
    /// `report`, one after another. The first processor's run is called `NAME`, the others' `NAME@NUMBER`.
    pub(crate) fn run_on_all(
        &mut self,
        name: &str,
        make: Make,
        report: &(dyn Fn(&str, Result<(), RunError>) + Sync),
    ) {
        let first = self.sessions + 1;
        self.sessions += processors::count() as u16;
        let (ready, turn) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let runner = &*self;
        processors::together(&|processor| {
            let session = first + processor as u16;
            let name: String = if processor == 0 { name.into() } else { format!("{name}@{processor}") };
            let workload = &mut *make();
            let plan = workload.plan();
            let prepared = runner.source.prepare(0, &plan);
            // All start at the same time.
            ready.fetch_add(1, Ordering::AcqRel);
            while ready.load(Ordering::Acquire) < processors::count() {
                core::hint::spin_loop();
            }
            let finished = prepared
                .and_then(|prepared| session::record(prepared, session, plan.interrupts, || workload.run()));
            processors::wait_until(|| turn.load(Ordering::Acquire) == processor);
            say(Line::Run(&name));
            report(&name, runner.judge_one_of_all(&name, session, &plan, finished, workload));
            turn.store(processor + 1, Ordering::Release);
            processors::wake_others();
        });
    }

    fn judge_one_of_all(
        &self,
        name: &str,
        session: u16,
        plan: &Plan,
        finished: Result<Finished, SourceError>,
        workload: &mut dyn Workload,
    ) -> Result<(), RunError> {
        match finished {
            Ok(finished) => {
                say(Line::Session(name, session));
                say(Line::Filter(name, plan.filter));
                self.judge(name, session, plan, &finished, workload)
            }
            Err(error) if error.is_refusal() => run_unrecorded(name, &error, workload),
            Err(error) => Err(RunError::Source(error)),
        }
    }

    fn record(
        &mut self,
        name: &str,
        prepared: Prepared,
        plan: &Plan,
        workload: &mut dyn Workload,
    ) -> Result<Finished, SourceError> {
        self.sessions += 1;
        say(Line::Session(name, self.sessions));
        say(Line::Filter(name, plan.filter));
        let finished = session::record(prepared, self.sessions, plan.interrupts, || workload.run());
        if let Some(RevokedFault { address, code }) = paging::take_revoked_fault() {
            say(Line::Fault(name, Fault { address, code }));
        }
        finished
    }

    /// Reports the recording, and checks it, the workload's result and the driver.
    fn judge(
        &self,
        name: &str,
        number: u16,
        plan: &Plan,
        finished: &Finished,
        workload: &dyn Workload,
    ) -> Result<(), RunError> {
        let Finished { stopped, counts, fault } = finished;
        let session = SessionReport {
            name,
            workload,
            plan,
            number,
            loss: &stopped.loss,
            counts,
            symbols: self.symbols,
            options: self.options,
        };
        let reported = stopped.recorded.report(&session);
        workload.check().map_err(RunError::Workload)?;
        check_driver(&stopped.loss, *fault)?;
        reported.map_err(RunError::Recording)
    }
}

/// Runs a workload that the source cannot record.
fn run_unrecorded(name: &str, error: &SourceError, workload: &mut dyn Workload) -> Result<(), RunError> {
    say(Line::Refuse(name, error));
    interrupts::enable();
    workload.run();
    interrupts::disable();
    workload.check().map_err(RunError::Workload)
}

/// Checks that the driver had no fault and that the unit was on all the time.
fn check_driver(loss: &Loss, fault: Option<GeneralProtection>) -> Result<(), RunError> {
    match fault {
        Some(fault) => Err(RunError::Interrupt(fault)),
        None if loss.error > 0 => Err(RunError::Operational(loss.error)),
        None => match loss.excluded + loss.abandoned + loss.turned_off {
            0 => Ok(()),
            times => Err(RunError::LeftOff(times)),
        },
    }
}
