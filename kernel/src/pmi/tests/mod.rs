mod machine;
mod optional;

use super::*;
use crate::lapic::Vector;
use crate::msr::GlobalStatus;
use machine::{FakeSource, PmiMachine};

#[test]
fn the_order_is_stop_acknowledge_serve_go_on_unmask() {
    let machine = PmiMachine::new(1);
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let pmi = machine.handle(&mut Handler::new(Delivery::Nmi), &mut [&mut source]).unwrap();
    assert_eq!(pmi, Pmi::Served);
    assert_eq!(
        machine.log(),
        ["quiesce", "status", "ack", "service", "status", "service", "resume", "lvt 0x400", "status"]
    );
}

#[test]
fn a_request_that_comes_while_one_is_served_is_served_too() {
    let machine = PmiMachine::new(3);
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut handler = Handler::new(Delivery::Nmi);
    assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Served));
    assert_eq!(handler.counts(), Counts { served: 1, unannounced: 2, ..Counts::default() });
}

#[test]
fn a_request_that_the_masked_entry_dropped_is_served() {
    let machine = PmiMachine::new(1);
    machine.0.borrow_mut().at_unmask = 1;
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut handler = Handler::new(Delivery::Nmi);
    assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Served));
    assert_eq!(handler.counts(), Counts { served: 1, unannounced: 1, ..Counts::default() });
    assert_eq!(machine.0.borrow().lvt, 0x400);
}

#[test]
fn a_source_that_asks_for_ever_is_left_stopped_and_masked() {
    // Also if the interrupt was an NMI of another cause, which does not mask the entry.
    for lvt in [0x1_0400, 0x400] {
        let machine = PmiMachine::new(u32::MAX);
        machine.0.borrow_mut().lvt = lvt;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut handler = Handler::new(Delivery::Nmi);
        assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Stuck));
        assert_eq!(handler.counts().stuck, 1);
        assert_eq!(source.abandoned, Some(Abandoned::Stuck));
        assert!(!machine.log().contains(&"resume".to_string()));
        assert!(LvtPc(machine.0.borrow().lvt).is_masked());
    }
}

#[test]
fn who_has_asked_too_often_is_served_and_left_stopped_and_whoever_does_not_ask_goes_on() {
    for (requests, verdict, lvt) in [(1, Pmi::Stuck, 0x1_0400), (0, Pmi::Stray, 0x400)] {
        let machine = PmiMachine::new(requests);
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut handler = Handler::new(Delivery::Nmi);
        let (mut msr, mut apic) = (machine.clone(), machine.clone());
        let pmi = handler.give_up(&mut msr, &mut apic, &mut [&mut source]);
        assert_eq!(pmi, Ok(verdict));
        let asked = requests > 0;
        assert_eq!(source.seen[0].is_empty(), !asked, "it is served");
        assert_eq!(source.abandoned, asked.then_some(Abandoned::Stuck));
        assert_eq!(machine.log().contains(&"resume".to_string()), !asked);
        assert_eq!((handler.counts().stuck, machine.0.borrow().lvt), (u64::from(asked), lvt));
    }
}

#[test]
fn a_status_bit_that_nobody_takes_does_not_hang_the_handler() {
    let machine = PmiMachine::new(u32::MAX);
    machine.0.borrow_mut().at_unmask = u32::MAX;
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    source.deaf = true;
    let mut handler = Handler::new(Delivery::Nmi);
    assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Stuck));
}

#[test]
fn an_interrupt_without_a_request_is_the_local_apics_or_nobodys() {
    let (nmi, fixed) = (Delivery::Nmi, Delivery::Fixed(Vector::new(0x40).unwrap()));
    // (delivery, LVT entry before, disarmed, verdict, LVT entry after)
    let table = [
        (nmi, 0x400, false, Pmi::NotOurs, 0x400),
        (nmi, 0x1_0400, false, Pmi::Stray, 0x400),
        // A masked entry that the handler did not unmask shows nothing, and stays masked.
        (nmi, 0x1_0400, true, Pmi::NotOurs, 0x1_0400),
        // Nothing else uses the vector.
        (fixed, 0x40, false, Pmi::Stray, 0x40),
        (fixed, 0x1_0040, false, Pmi::Stray, 0x40),
        (fixed, 0x1_0040, true, Pmi::Stray, 0x1_0040),
    ];
    for (delivery, before, disarmed, verdict, after) in table {
        for sources in [0, 1] {
            let what = format!("{delivery:?} {before:#x} {disarmed} {sources}");
            let machine = PmiMachine::new(0);
            let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
            let mut handler = Handler::new(delivery);
            if disarmed {
                handler.disarm(&mut machine.clone()).unwrap();
            }
            machine.0.borrow_mut().lvt = before;
            let mut all: [&mut dyn PmiSource; 1] = [&mut source];
            assert_eq!(machine.handle(&mut handler, &mut all[..sources]), Ok(verdict), "{what}");
            assert_eq!(handler.counts().stray, u64::from(verdict == Pmi::Stray), "{what}");
            assert_eq!(machine.0.borrow().lvt, after, "{what}");
            let stopped = delivery == nmi && verdict == Pmi::Stray || before == 0x1_0040 && !disarmed;
            assert_eq!(machine.log().contains(&"quiesce".to_string()), stopped && sources == 1, "{what}");
            assert_eq!(machine.log().contains(&"resume".to_string()), stopped && sources == 1, "{what}");
        }
    }
}

#[test]
fn somebody_elses_nmi_costs_a_look_and_stops_nothing() {
    // (status of others, bits of the source, steps)
    let table: [(_, _, &[&str]); 3] = [
        (GlobalStatus::empty(), GlobalStatus::TRACE_TOPA_PMI, &["status"]),
        (GlobalStatus::OVF_BUF, GlobalStatus::TRACE_TOPA_PMI, &["status"]),
        // A source without bits needs no check of the status.
        (GlobalStatus::OVF_BUF, GlobalStatus::empty(), &[]),
    ];
    for (others, status, done) in table {
        for handler in [Handler::new(Delivery::Nmi), Handler::amd(Delivery::Nmi)] {
            let (machine, mut handler) = (PmiMachine::new(0), handler);
            machine.0.borrow_mut().lvt = 0x400;
            machine.0.borrow_mut().others = others;
            let mut source = machine.source(status);
            assert_eq!(machine.handle_at(Some(1), &mut handler, &mut [&mut source]), Ok(Pmi::NotOurs));
            assert_eq!(machine.log(), done, "{others:?} {status:?}");
            // An NMI that may be a late one writes nothing, either.
            handler.expect_late(1);
            assert_eq!(machine.handle_at(Some(2), &mut handler, &mut [&mut source]), Ok(Pmi::Unknown));
            assert_eq!(machine.log().len(), 2 * done.len(), "{others:?} {status:?}");
        }
    }
}

#[test]
fn what_amds_handler_masked_is_unmasked_when_nobody_asks_any_more() {
    // (the source is still there, late NMIs that may come)
    for (present, late) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let what = format!("{present} {late}");
        let machine = PmiMachine::new(u32::MAX);
        machine.0.borrow_mut().lvt = 0x400;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut handler = Handler::amd(Delivery::Nmi);
        let mut all: [&mut dyn PmiSource; 1] = [&mut source];
        assert_eq!(machine.handle(&mut handler, &mut all), Ok(Pmi::Stuck), "{what}");
        assert_eq!(machine.0.borrow().lvt, 0x1_0400, "{what}");
        // AMD's local APIC masked nothing: the handler masked the entry, so only the handler unmasks it.
        machine.0.borrow_mut().requests = 0;
        handler.expect_late(late);
        let sources = &mut all[..usize::from(present)];
        let verdict = if late > 0 { Pmi::Unknown } else { Pmi::NotOurs };
        assert_eq!(machine.handle(&mut handler, sources), Ok(verdict), "{what}");
        assert_eq!(machine.0.borrow().lvt, 0x400, "{what}");
        let done = machine.lvt_writes().len();
        assert_eq!(machine.handle(&mut handler, sources), Ok(Pmi::NotOurs), "{what}");
        assert_eq!(machine.lvt_writes().len(), done, "{what}: once is enough");
    }
}

#[test]
fn what_was_given_up_is_served_by_the_next_interrupt_which_may_be_somebody_elses() {
    for (lvt, verdict) in [(0x400, Pmi::NotOurs), (0x1_0400, Pmi::Unknown)] {
        let machine = PmiMachine::new(0);
        machine.0.borrow_mut().lvt = 0x1_0400;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut handler = Handler::new(Delivery::Nmi);
        source.fault = true;
        machine.handle(&mut handler, &mut [&mut source]).unwrap_err();
        source.fault = false;
        machine.0.borrow_mut().lvt = lvt;
        assert_eq!(machine.handle_at(Some(1), &mut handler, &mut [&mut source]), Ok(verdict));
        assert!(machine.log().contains(&"resume".to_string()), "{lvt:#x}");
        assert_eq!(machine.0.borrow().lvt, 0x400);
        let done = machine.log().len();
        assert_eq!(machine.handle_at(Some(2), &mut handler, &mut [&mut source]), Ok(Pmi::NotOurs));
        assert_eq!(machine.log()[done..], ["status"], "once is enough");
    }
}

#[test]
fn a_source_that_may_ask_is_asked_also_where_the_entry_says_nothing() {
    for handler in [Handler::new(Delivery::Nmi), Handler::amd(Delivery::Nmi)] {
        let (machine, mut handler) = (PmiMachine::new(1), handler);
        machine.0.borrow_mut().lvt = 0x400;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut other = machine.source(GlobalStatus::empty());
        assert_eq!(machine.handle(&mut handler, &mut [&mut other, &mut source]), Ok(Pmi::Served));
        let mut other = Asks(machine.source(GlobalStatus::empty()), true);
        assert_eq!(machine.handle_at(Some(9), &mut handler, &mut [&mut source, &mut other]), Ok(Pmi::Served));
        assert_eq!(
            machine.handle_at(Some(8), &mut handler, &mut [&mut source, &mut other]),
            Ok(Pmi::NotOurs)
        );
    }
}

/// A source that reports a request in its own way, once.
struct Asks(FakeSource, bool);

impl PmiSource for Asks {
    fn status(&self) -> Requests {
        self.0.status()
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.0.quiesce()
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.1)
    }

    fn service(&mut self, _: Requests) -> Result<bool, GeneralProtection> {
        Ok(core::mem::take(&mut self.1))
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.0.resume()
    }
}

#[test]
fn the_entry_of_somebody_else_is_not_armed() {
    let machine = PmiMachine::new(0);
    machine.0.borrow_mut().lvt = 0x1_00ef;
    let handler = Handler::extended();
    handler.arm(&mut machine.clone()).unwrap();
    handler.disarm(&mut machine.clone()).unwrap();
    assert_eq!(machine.lvt_writes(), Vec::<String>::new());
}

#[test]
fn a_handler_that_is_disarmed_serves_and_stays_masked_until_it_is_armed() {
    let machine = PmiMachine::new(1);
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut handler = Handler::new(Delivery::Nmi);
    handler.disarm(&mut machine.clone()).unwrap();
    assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Served));
    assert_eq!(machine.0.borrow().lvt, 0x1_0400);
    assert_eq!(
        machine.handle(&mut handler, &mut [&mut source]),
        Ok(Pmi::NotOurs),
        "nothing could be latched"
    );
    handler.arm(&mut machine.clone()).unwrap();
    machine.0.borrow_mut().lvt = 0x1_0400;
    assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Stray));
    assert_eq!(machine.0.borrow().lvt, 0x400);
}

#[test]
fn a_repeated_nmi_comes_before_anything_else_runs() {
    // (RIP at the PMI, RIP at the next interrupts, verdicts); the entry is never masked by them.
    let table: [(_, &[_], &[_]); 7] = [
        // Only the address shows a repeated NMI: it may be an NMI of another cause, right after the PMI.
        (Some(0x1000), &[Some(0x1000), Some(0x1000)], &[Pmi::Unknown, Pmi::NotOurs]),
        (Some(0x1000), &[Some(0x1001), Some(0x1000)], &[Pmi::NotOurs, Pmi::NotOurs]),
        (Some(0x1000), &[None], &[Pmi::NotOurs]),
        // Without RIP, only the registers count.
        (None, &[None, None], &[Pmi::NotOurs, Pmi::NotOurs]),
        (None, &[Some(0x1000)], &[Pmi::NotOurs]),
        (None, &[], &[]),
        (Some(0), &[None], &[Pmi::NotOurs]),
    ];
    for (first, then, verdicts) in table {
        let machine = PmiMachine::new(1);
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut handler = Handler::new(Delivery::Nmi);
        let pmi = machine.handle_at(first, &mut handler, &mut [&mut source]);
        assert_eq!(pmi, Ok(Pmi::Served));
        for (at, verdict) in then.iter().zip(verdicts) {
            let pmi = machine.handle_at(*at, &mut handler, &mut [&mut source]);
            assert_eq!(pmi, Ok(*verdict), "{first:x?} {at:x?}");
        }
    }
}

#[test]
fn a_repeated_nmi_is_no_longer_expected_when_code_ran() {
    let machine = PmiMachine::new(1);
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut handler = Handler::new(Delivery::Nmi);
    machine.handle_at(Some(0x1000), &mut handler, &mut [&mut source]).unwrap();
    handler.forget_repeated_nmi();
    assert_eq!(machine.handle_at(Some(0x1000), &mut handler, &mut [&mut source]), Ok(Pmi::NotOurs));
}

#[test]
fn the_registers_show_that_a_served_pmi_may_be_latched() {
    // (LVT entry at the interrupt, requests that come when it is unmasked)
    for (lvt, at_unmask) in [(0x400, 0), (0x1_0400, 1)] {
        let machine = PmiMachine::new(1);
        machine.0.borrow_mut().lvt = lvt;
        machine.0.borrow_mut().at_unmask = at_unmask;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut handler = Handler::new(Delivery::Nmi);
        for verdict in [Pmi::Served, Pmi::Stray, Pmi::NotOurs] {
            assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(verdict), "{lvt:#x}");
        }
        machine.0.borrow_mut().lvt = lvt;
        (machine.0.borrow_mut().requests, machine.0.borrow_mut().at_unmask) = (1, at_unmask);
        for verdict in [Pmi::Served, Pmi::Stray, Pmi::NotOurs] {
            assert_eq!(machine.handle_at(Some(7), &mut handler, &mut [&mut source]), Ok(verdict), "{lvt:#x}");
        }
    }
}

#[test]
fn amds_local_apic_leaves_the_entry_as_it_is() {
    for (handler, verdict) in
        [(Handler::new(Delivery::Nmi), Pmi::Stray), (Handler::amd(Delivery::Nmi), Pmi::NotOurs)]
    {
        let (machine, mut handler) = (PmiMachine::new(0), handler);
        assert_eq!(machine.handle(&mut handler, &mut []), Ok(verdict));
    }
}

#[test]
fn amds_entry_that_is_not_masked_shows_no_latched_nmi() {
    // (requests that the served interrupt found, verdicts of the NMIs after it)
    for (requests, verdicts) in [(1, [Pmi::NotOurs; 2]), (2, [Pmi::Unknown, Pmi::NotOurs])] {
        let machine = PmiMachine::new(1);
        machine.0.borrow_mut().lvt = 0x400;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        source.late = requests;
        let mut handler = Handler::amd(Delivery::Nmi);
        assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Served));
        source.late = 0;
        for verdict in verdicts {
            assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(verdict), "{requests} requests");
        }
    }
}

#[test]
fn the_counters_entry_is_left_alone_where_no_source_asks_through_it() {
    // (requests, NMIs that a stop left, a source is there, verdict)
    let table = [
        (1, 0, true, Pmi::Served),
        (0, 1, true, Pmi::Unknown),
        (0, 1, false, Pmi::Unknown),
        (0, 0, true, Pmi::NotOurs),
        (u32::MAX, 0, true, Pmi::Stuck),
    ];
    // A masked entry, a fixed interrupt and an NMI of another owner.
    for lvt in [0x1_0000, 0xef, 0x400] {
        for (requests, late, present, verdict) in table {
            let machine = PmiMachine::new(requests);
            machine.0.borrow_mut().lvt = lvt;
            let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
            source.route = Route::Extended;
            let mut handler = Handler::amd(Delivery::Nmi);
            handler.expect_late(late);
            let mut all: [&mut dyn PmiSource; 1] = [&mut source];
            let pmi = machine.handle(&mut handler, &mut all[..usize::from(present)]);
            assert_eq!(pmi, Ok(verdict), "{lvt:#x} {requests} {late}");
            assert_eq!(machine.lvt_writes(), Vec::<String>::new(), "{lvt:#x} {requests} {late}");
        }
    }
}

#[test]
fn one_source_that_asks_through_the_counters_entry_is_enough_to_unmask_it() {
    for own in [0, 1] {
        let machine = PmiMachine::new(1);
        let mut sources = [0, 1].map(|_| machine.source(GlobalStatus::TRACE_TOPA_PMI));
        sources[1 - own].route = Route::Extended;
        let [first, second] = &mut sources;
        let mut handler = Handler::amd(Delivery::Nmi);
        assert_eq!(machine.handle(&mut handler, &mut [first, second]), Ok(Pmi::Served));
        assert_eq!(machine.lvt_writes(), ["lvt 0x400"]);
    }
}

#[test]
fn as_many_late_nmis_are_waited_for_as_may_come() {
    // (requests that the served interrupt found, NMIs that a stop expects, those that are waited for)
    let table =
        [(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 0, 2), (9, 0, 4), (0, 1, 1), (2, 1, 2), (2, 2, 3), (0, 9, 4)];
    for (requests, expected, claimed) in table {
        let machine = PmiMachine::new(1);
        machine.0.borrow_mut().lvt = 0x400;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        source.late = requests;
        let mut handler = Handler::amd(Delivery::Nmi);
        assert_eq!(machine.handle_at(Some(0x1000), &mut handler, &mut [&mut source]), Ok(Pmi::Served));
        source.late = 0;
        handler.expect_late(expected);
        // An NMI that arrives before anything else ran is identified by its address, and uses up no expected late NMI.
        assert_eq!(machine.handle_at(Some(0x1000), &mut handler, &mut [&mut source]), Ok(Pmi::Unknown));
        for n in 0..6 {
            let verdict = if n < claimed { Pmi::Unknown } else { Pmi::NotOurs };
            let pmi = machine.handle_at(Some(0x2000), &mut handler, &mut [&mut source]);
            assert_eq!(pmi, Ok(verdict), "{requests} {expected} {n}");
        }
    }
}

#[test]
fn an_nmi_that_finds_the_next_request_leaves_its_own_for_later() {
    let machine = PmiMachine::new(3);
    machine.0.borrow_mut().lvt = 0x400;
    machine.0.borrow_mut().at_unmask = 0;
    let mut handler = Handler::amd(Delivery::Nmi);
    // Two requests, then one each time: one NMI is always in flight.
    for (at, requests) in [(1, 2), (2, 1), (3, 2), (4, 1)] {
        machine.0.borrow_mut().requests = 1;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        source.late = requests;
        assert_eq!(machine.handle_at(Some(at), &mut handler, &mut [&mut source]), Ok(Pmi::Served));
    }
    for (at, verdict) in [(5, Pmi::Unknown), (6, Pmi::Unknown), (7, Pmi::NotOurs)] {
        assert_eq!(machine.handle_at(Some(at), &mut handler, &mut []), Ok(verdict));
    }
}

#[test]
fn what_was_served_before_a_fault_leaves_late_nmis_too() {
    let machine = PmiMachine::new(1);
    machine.0.borrow_mut().lvt = 0x400;
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    (source.fault, source.late) = (true, 1);
    let mut handler = Handler::amd(Delivery::Nmi);
    machine.handle(&mut handler, &mut [&mut source]).unwrap_err();
    // Another call serves the other half of one interrupt's requests.
    source.fault = false;
    assert_eq!(machine.handle_at(Some(1), &mut handler, &mut [&mut source]), Ok(Pmi::Served));
    assert_eq!(machine.handle_at(Some(2), &mut handler, &mut []), Ok(Pmi::Unknown));
    assert_eq!(machine.handle_at(Some(2), &mut handler, &mut []), Ok(Pmi::NotOurs));
}

#[test]
fn what_a_pmi_froze_is_released_unless_somebody_else_asks() {
    let both = GlobalStatus::CTR_FRZ | GlobalStatus::LBR_FRZ;
    let topa = GlobalStatus::TRACE_TOPA_PMI;
    // (status beside the request, bits acknowledged at the end)
    let table = [
        (both, Some(both)),
        (GlobalStatus::CTR_FRZ, Some(GlobalStatus::CTR_FRZ)),
        (GlobalStatus::LBR_FRZ | GlobalStatus::COND_CHGD, Some(GlobalStatus::LBR_FRZ)),
        (both | GlobalStatus::ASCI, Some(both)),
        (GlobalStatus::COND_CHGD, None),
        (both | GlobalStatus::OVF_BUF, None),
        (both | GlobalStatus::from_bits_retain(1), None),
        (both | GlobalStatus::from_bits_retain(1 << 32), None),
    ];
    for (others, released) in table {
        let machine = PmiMachine::new(1);
        machine.0.borrow_mut().others = others;
        let mut source = machine.source(topa);
        machine.handle(&mut Handler::new(Delivery::Nmi), &mut [&mut source]).unwrap();
        let acked = machine.0.borrow().acked.clone();
        assert_eq!(acked, [Some(topa), released].into_iter().flatten().collect::<Vec<_>>(), "{others:?}");
        // The masked entry drops the overflow of a counter, so the counter resumes only after the entry is unmasked.
        let last = if released.is_some() {
            ["lvt 0x400", "status", "ack"]
        } else {
            ["resume", "lvt 0x400", "status"]
        };
        assert!(machine.log().ends_with(&last.map(String::from)), "{others:?}");
        // Frozen by a PMI of another owner.
        let machine = PmiMachine::new(0);
        machine.0.borrow_mut().others = others;
        machine.handle(&mut Handler::new(Delivery::Nmi), &mut [&mut machine.source(topa)]).unwrap();
        assert_eq!(machine.0.borrow().acked, [], "{others:?}");
    }
}

#[test]
fn each_source_is_served_with_its_own_bits_and_others_are_left() {
    let machine = PmiMachine::new(1);
    machine.0.borrow_mut().bits =
        GlobalStatus::TRACE_TOPA_PMI | GlobalStatus::OVF_BUF | GlobalStatus::OVF_UNCORE;
    let mut pt = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut bts = machine.source(GlobalStatus::OVF_BUF);
    let mut none = machine.source(GlobalStatus::empty());
    machine
        .handle(
            &mut Handler::new(Delivery::Fixed(Vector::new(0x40).unwrap())),
            &mut [&mut pt, &mut bts, &mut none],
        )
        .unwrap();
    assert_eq!(pt.seen, [Requests::in_global_status(1 << 55), Requests::NONE]);
    assert_eq!(bts.seen, [GlobalStatus::OVF_BUF.into(), Requests::NONE]);
    assert_eq!(none.seen, [Requests::NONE, Requests::NONE]);
    assert_eq!(machine.0.borrow().acked, [GlobalStatus::TRACE_TOPA_PMI | GlobalStatus::OVF_BUF]);
    assert_eq!(machine.0.borrow().lvt, 0x40);
}

#[test]
fn a_fault_leaves_the_sources_stopped_and_the_entry_masked() {
    let machine = PmiMachine::new(1);
    let mut bad = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    bad.fault = true;
    let mut good = machine.source(GlobalStatus::OVF_BUF);
    let fault = GeneralProtection { address: 0x570, written: Some(0) };
    assert_eq!(machine.handle(&mut Handler::new(Delivery::Nmi), &mut [&mut bad, &mut good]), Err(fault));
    // Both are stopped before the report that they stay stopped.
    assert_eq!(machine.log(), ["quiesce", "quiesce", "quiesce", "quiesce", "abandon", "abandon"]);
    assert_eq!(
        (bad.abandoned, good.abandoned),
        (Some(Abandoned::Fault(fault)), Some(Abandoned::Fault(fault)))
    );
    assert_eq!(machine.0.borrow().lvt, 0x1_0400);
}

#[test]
fn arming_and_disarming_write_the_entry() {
    for (delivery, bits) in [(Delivery::Nmi, 0x400), (Delivery::Fixed(Vector::new(0x40).unwrap()), 0x40)] {
        let machine = PmiMachine::new(0);
        let handler = Handler::new(delivery);
        handler.arm(&mut machine.clone()).unwrap();
        assert_eq!(machine.0.borrow().lvt, bits);
        handler.disarm(&mut machine.clone()).unwrap();
        assert_eq!(machine.0.borrow().lvt, bits | 1 << 16);
    }
}
