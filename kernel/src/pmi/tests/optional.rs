//! Sources that may be absent.

use super::machine::PmiMachine;
use crate::lapic::Delivery;
use crate::msr::{GeneralProtection, GlobalStatus};
use crate::pmi::{Abandoned, Handler, Pmi, PmiSource, Requests, Route};

const FAULT: GeneralProtection = GeneralProtection { address: 0x570, written: None };

/// A source whose every answer differs from the default implementation's, and that logs its calls.
#[derive(Default)]
struct Talkative(Vec<String>);

impl Talkative {
    fn note(&mut self, what: &str) {
        self.0.push(what.into());
    }
}

impl PmiSource for Talkative {
    fn status(&self) -> Requests {
        Requests::in_global_status(1)
    }

    fn route(&self) -> Route {
        Route::Extended
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.note("quiesce");
        Err(FAULT)
    }

    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        self.note("asks");
        Ok(true)
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.note("may_ask");
        Ok(true)
    }

    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection> {
        self.note(&format!("service {seen:?}"));
        Ok(true)
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.note("resume");
        Err(FAULT)
    }

    fn abandon(&mut self, why: Abandoned) {
        self.note(&format!("abandon {why:?}"));
    }

    fn late_requests(&self) -> u8 {
        3
    }
}

/// Calls each method, and returns the answers.
fn answers(source: &mut impl PmiSource) -> String {
    let seen = Requests::in_global_status(2);
    let now = (source.status(), source.route(), source.late_requests());
    let steps = (source.quiesce(), source.asks(), source.may_ask(), source.service(seen), source.resume());
    source.abandon(Abandoned::Stuck);
    format!("{now:?} {steps:?}")
}

#[test]
fn a_source_that_is_there_is_called_for_everything() {
    let mut source = Talkative::default();
    let mut optional = Some(Talkative::default());
    assert_eq!(answers(&mut optional), answers(&mut source));
    let called = optional.unwrap().0;
    assert_eq!(called, source.0);
    assert_eq!(called.len(), 6);
}

#[test]
fn an_absent_source_requests_nothing_and_nothing_fails() {
    let expected = (Requests::NONE, Route::None, 0u8);
    let no: Result<bool, GeneralProtection> = Ok(false);
    let done: Result<(), GeneralProtection> = Ok(());
    assert_eq!(answers(&mut None::<Talkative>), format!("{expected:?} {:?}", (done, no, no, no, done)));
}

#[test]
fn an_interrupt_with_absent_sources_is_handled_as_without_them() {
    // The route of a second source, if there is one.
    for route in [None, Some(Route::Counters), Some(Route::Extended)] {
        for masked in [false, true] {
            let handled = |absent: bool| {
                let machine = PmiMachine::new(u32::from(route.is_some()));
                machine.0.borrow_mut().lvt = if masked { 0x1_0400 } else { 0x400 };
                let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
                source.route = route.unwrap_or(Route::Counters);
                let mut nothing = None::<Talkative>;
                let mut sources: Vec<&mut dyn PmiSource> = Vec::new();
                if route.is_some() {
                    sources.push(&mut source);
                }
                if absent {
                    sources.insert(0, &mut nothing);
                }
                let pmi = machine.handle(&mut Handler::new(Delivery::Nmi), &mut sources);
                (pmi, machine.lvt_writes())
            };
            assert_eq!(handled(true), handled(false), "{route:?} {masked}");
        }
    }
    // This handler unmasks the entry for a source that is gone.
    let machine = PmiMachine::new(0);
    let pmi = machine.handle(&mut Handler::new(Delivery::Nmi), &mut [&mut None::<Talkative>]);
    assert_eq!((pmi, machine.lvt_writes()), (Ok(Pmi::Stray), vec!["lvt 0x400".to_owned()]));
}
