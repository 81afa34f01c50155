//! Tests of the lifecycle with a session that logs its steps, and whose steps fail if a test requests it.

use super::*;
use crate::msr::{GeneralProtection, MiscEnable};
use crate::pmi::{Abandoned, PmiSource, Requests};
use std::cell::RefCell;
use std::rc::Rc;

const FAULT: GeneralProtection = GeneralProtection { address: 0x570, written: None };

#[derive(Clone, Default)]
struct Log(Rc<RefCell<(Vec<&'static str>, Vec<&'static str>)>>);

impl Log {
    /// Makes steps with these names fail, each once.
    fn failing(steps: &[&'static str]) -> Self {
        let log = Self::default();
        log.0.borrow_mut().1.extend(steps);
        log
    }

    fn step(&self, name: &'static str) -> Result<(), GeneralProtection> {
        let mut inner = self.0.borrow_mut();
        inner.0.push(name);
        match inner.1.iter().position(|failing| *failing == name) {
            Some(n) => {
                inner.1.remove(n);
                Err(FAULT)
            }
            None => Ok(()),
        }
    }

    /// Returns the steps since the last call.
    fn steps(&self) -> String {
        core::mem::take(&mut self.0.borrow_mut().0).join(" ")
    }
}

/// Memory that logs when it is freed.
struct SessionMemory(Log);

impl Drop for SessionMemory {
    fn drop(&mut self) {
        self.0.step("free").unwrap();
    }
}

struct Session<const WRITES: bool>(SessionMemory);

impl<const WRITES: bool> Sealed for Session<WRITES> {}

impl<const WRITES: bool> Recording for Session<WRITES> {
    type Unit = ();
    type Memory = SessionMemory;
    type Stopped = SessionMemory;
    type Refusal = ();

    const WRITES_MEMORY: bool = WRITES;

    fn begin(&mut self) -> Result<(), StartError<()>> {
        Ok(self.0.0.step("begin")?)
    }

    fn halt(&mut self) -> Result<(), GeneralProtection> {
        self.0.0.step("halt")
    }

    fn finish(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        self.0.0.step("finish")
    }

    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        self.0.0.step("leave")
    }

    fn abandon(&mut self, why: Abandoned) {
        assert_eq!(why, Abandoned::NotResumed);
        let _ = self.0.0.step("abandon");
    }

    fn into_stopped(self) -> SessionMemory {
        self.0
    }

    fn into_parts(self) -> ((), SessionMemory) {
        ((), self.0)
    }
}

impl<const WRITES: bool> Serve<()> for Session<WRITES> {
    fn serve(&mut self, _: Requests, (): &mut (), _: &Halted) -> Result<bool, GeneralProtection> {
        self.0.0.step("serve").map(|()| true)
    }

    fn resume(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        self.0.0.step("resume")
    }
}

fn start<const WRITES: bool>(log: &Log) -> Result<Running<Session<WRITES>>, NotStarted<Session<WRITES>>> {
    Running::start(Session(SessionMemory(log.clone())))
}

#[test]
fn a_start_gives_back_what_lets_itself_be_halted() {
    // (steps that fail, steps, it is stuck, steps of the drop)
    let table = [
        (vec!["begin"], "begin halt leave", false, "free"),
        (vec!["begin", "halt"], "begin halt", true, "halt leave free"),
        (vec!["begin", "leave"], "begin halt leave", true, "halt leave free"),
    ];
    for (failing, steps, stuck, dropped) in table {
        let log = Log::failing(&failing);
        let failed = start::<true>(&log).unwrap_err();
        assert_eq!((log.steps().as_str(), failed.error()), (steps, StartError::Fault(FAULT)));
        assert_eq!(matches!(failed, NotStarted::Stuck { .. }), stuck, "{failed:?}");
        drop(failed);
        assert_eq!(log.steps(), dropped);
    }
}

#[test]
fn a_question_mark_keeps_the_reason_and_drops_the_rest_after_it_is_halted() {
    fn lives(log: &Log) -> Result<GeneralProtection, StartError<()>> {
        let running = start::<true>(log)?;
        let stop = || -> Result<SessionMemory, GeneralProtection> { Ok(running.stop()?) };
        Ok(stop().map(|_| panic!("it does not stop")).unwrap_err())
    }
    // (steps that fail, the result, all steps)
    let table = [
        (vec!["begin"], Err(StartError::Fault(FAULT)), "begin halt leave free"),
        (vec!["begin", "halt"], Err(StartError::Fault(FAULT)), "begin halt halt leave free"),
        (vec!["begin", "halt", "halt"], Err(StartError::Fault(FAULT)), "begin halt halt"),
        (vec!["halt"], Ok(FAULT), "begin halt halt leave free"),
        (vec!["halt", "halt"], Ok(FAULT), "begin halt halt"),
        (vec!["finish"], Ok(FAULT), "begin halt finish halt leave free"),
    ];
    for (failing, result, steps) in table {
        let log = Log::failing(&failing);
        assert_eq!((lives(&log), log.steps().as_str()), (result, steps), "{failing:?}");
    }
}

#[test]
fn a_drop_halts_and_memory_stays_with_a_processor_that_may_write_to_it() {
    // (step that fails, steps if the processor writes to memory, steps if it does not)
    let table = [
        ("", "halt leave free", "halt leave free"),
        ("halt", "halt", "halt free"),
        ("leave", "halt leave", "halt leave free"),
    ];
    for (failing, writes, registers) in table {
        let log = Log::failing(&[failing]);
        let running = start::<true>(&log).unwrap();
        log.steps();
        drop(running);
        assert_eq!(log.steps(), writes, "{failing}");

        let log = Log::failing(&[failing]);
        let running = start::<false>(&log).unwrap();
        log.steps();
        drop(running);
        assert_eq!(log.steps(), registers, "{failing}");
    }
}

#[test]
fn a_stop_that_fails_can_be_tried_again_or_given_up() {
    let table =
        [("halt", "begin halt"), ("finish", "begin halt finish"), ("leave", "begin halt finish leave")];
    for (failing, steps) in table {
        let log = Log::failing(&[failing]);
        let failed = start::<true>(&log).unwrap().stop().err().unwrap();
        assert_eq!((log.steps().as_str(), failed.fault), (steps, FAULT));
        assert_eq!(failed.to_string(), "the recording does not stop: RDMSR 0x570 raised #GP(0)");
        let memory = failed.running.stop().unwrap();
        assert_eq!(log.steps(), "halt finish leave");
        drop(memory);

        let log = Log::failing(&[failing, "halt"]);
        let failed = start::<true>(&log).unwrap().stop().err().unwrap();
        log.steps();
        // If the stop halted the session, the second fault happens in this first attempt to give up.
        let given_up = failed.give_up().or_else(StopFailed::give_up);
        let ((), memory) = given_up.unwrap();
        assert!(log.steps().ends_with("halt leave"), "{failing}");
        drop(memory);
        assert_eq!(log.steps(), "free");
    }
}

#[test]
fn a_source_is_halted_once_from_there_until_it_goes_on() {
    let log = Log::default();
    let mut running = start::<true>(&log).unwrap();
    log.steps();
    let mut source = Source::new(&mut running, ());
    source.quiesce().unwrap();
    assert_eq!(source.service(Requests::NONE), Ok(true));
    assert_eq!(source.service(Requests::NONE), Ok(true));
    source.resume().unwrap();
    assert_eq!(log.steps(), "halt serve serve resume");
    // Without a proof of the halt, the source halts the session first.
    assert_eq!(source.service(Requests::NONE), Ok(true));
    source.resume().unwrap();
    source.resume().unwrap();
    assert_eq!(log.steps(), "halt serve resume halt resume");
}

#[test]
fn a_source_that_is_not_halted_is_neither_served_nor_resumed() {
    let log = Log::failing(&["halt", "halt", "halt"]);
    let mut running = start::<true>(&log).unwrap();
    log.steps();
    let mut source = Source::new(&mut running, ());
    assert_eq!(source.quiesce(), Err(FAULT));
    assert_eq!(source.service(Requests::NONE), Err(FAULT));
    assert_eq!(source.resume(), Err(FAULT));
    assert_eq!(log.steps(), "halt halt halt");
}

#[test]
fn a_unit_whose_source_ends_without_a_resume_is_told_that_it_stays_off() {
    type Use = fn(&mut dyn PmiSource);
    let table: [(Use, &str); 7] = [
        (|_| (), ""),
        (|source| _ = (source.asks(), source.status()), ""),
        (|source| _ = source.quiesce(), "halt abandon"),
        (|source| _ = source.service(Requests::NONE), "halt serve abandon"),
        (|source| _ = (source.quiesce(), source.resume()), "halt resume"),
        (|source| _ = (source.resume(), source.service(Requests::NONE)), "halt resume halt serve abandon"),
        (|source| source.abandon(Abandoned::NotResumed), "abandon"),
    ];
    for (used, steps) in table {
        let log = Log::default();
        let mut running = start::<true>(&log).unwrap();
        log.steps();
        let mut source = Source::new(&mut running, ());
        used(&mut source);
        drop(source);
        assert_eq!(log.steps(), steps);
        // The next use finds the state that a forgotten one has left.
        let mut source = Source::new(&mut running, ());
        used(&mut source);
        core::mem::forget(source);
        assert_eq!(log.steps(), steps.strip_suffix(" abandon").unwrap_or(steps));
        let _ = running.stop();
        let left = if steps.ends_with(" abandon") { "abandon " } else { "" };
        assert_eq!(log.steps(), format!("{left}halt finish leave free"));
    }
}

#[test]
fn a_unit_whose_resume_or_halt_fails_is_told_unless_the_handler_does() {
    for (failing, steps) in [("halt", "halt abandon"), ("resume", "halt resume abandon")] {
        let log = Log::failing(&[failing]);
        let mut running = start::<true>(&log).unwrap();
        log.steps();
        assert_eq!(Source::new(&mut running, ()).resume(), Err(FAULT));
        assert_eq!(log.steps(), steps);
    }
}

#[test]
fn a_call_through_which_a_panic_unwinds_leaves_the_unit_off_and_tells() {
    let log = Log::default();
    let mut running = start::<true>(&log).unwrap();
    log.steps();
    let call = std::panic::AssertUnwindSafe(|| running.with(|_| std::panic::resume_unwind(Box::new(()))));
    assert!(std::panic::catch_unwind(call).is_err());
    assert_eq!(log.steps(), "abandon");
    running.with(|_| ());
    assert_eq!(log.steps(), "");
}

#[test]
fn what_a_processor_lacks_is_missing_and_what_it_has_but_does_not_work_is_not() {
    let nothing = Absent::NothingToStore { misc_enable: MiscEnable::BTS_UNAVAILABLE, pebs: Missing::Pebs };
    let not_backed = NotBacked { address: 0x570, written: 1, read: 0 };
    let rows = [
        (Absent::Missing(Missing::ProcessorTrace), true),
        (nothing, true),
        (not_backed.into(), false),
        (FAULT.into(), false),
    ];
    for (absent, missing) in rows {
        assert_eq!(absent.is_missing(), missing, "{absent}");
    }
}
