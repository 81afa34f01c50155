use super::*;
use crate::amd::counters::OverflowCounts;
use crate::amd::fake;

const PARTS: [Cpu; 4] = [fake::K8, fake::BULLDOZER, fake::ZEN_2, fake::ZEN_4];

#[test]
fn each_period_asks_for_an_interrupt_and_the_next_one_begins() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let mut running =
            start(&machine, &[CountedEvent::new(0xc0, 0), CountedEvent::new(0xc2, 0).every(100)]);
        let (mut handler, mut overflows) = (handler(), Vec::new());
        for n in 1..=3 {
            machine.count(99, true);
            assert!(!machine.take_nmi());
            machine.count(1, true);
            assert!(machine.take_nmi());
            assert_eq!(nmi(&machine, &mut handler, &mut running, &mut keep(&mut overflows)), Ok(Pmi::Served));
            assert_eq!(overflows.last(), Some(&Overflow { event: 1, count: 100 * n }), "{cpu:x?}");
            assert_eq!(machine.get(GLOBAL_STATUS), 0, "it is acknowledged");
        }
        assert_eq!(overflows.len(), 3);
        assert_eq!(running.count(1), Ok(Some(300)));
        assert_eq!(running.overflows(), &OverflowCounts { taken: 3, ..Default::default() });
    }
}

#[test]
fn what_is_counted_before_the_handler_comes_is_of_the_next_period() {
    // (events, taken, skipped, events until the next interrupt)
    for (events, skipped, left) in [(100, 0, 100), (130, 0, 70), (199, 0, 1), (200, 1, 100), (350, 2, 50)] {
        for cpu in PARTS {
            let machine = Machine::new(cpu);
            let mut running = start(&machine, &[CountedEvent::new(0xc2, 0).every(100)]);
            machine.count(events, true);
            nmi(&machine, &mut handler(), &mut running, &mut |_| true).unwrap();
            assert_eq!(running.overflows(), &OverflowCounts { taken: 1, skipped, ..Default::default() });
            assert!(machine.take_nmi());
            machine.count(left - 1, true);
            assert!(!machine.take_nmi(), "{cpu:x?} {events}");
            machine.count(1, true);
            assert!(machine.take_nmi(), "{cpu:x?} {events}");
            assert_eq!(running.count(0), Ok(Some(events + left)));
            // The shortened period is not treated as a whole one.
            machine.count(40, true);
            nmi(&machine, &mut handler(), &mut running, &mut |_| true).unwrap();
            assert_eq!(running.overflows(), &OverflowCounts { taken: 2, skipped, ..Default::default() });
            machine.count(59, true);
            assert!(!machine.take_nmi(), "{cpu:x?} {events}");
            machine.count(1, true);
            assert!(machine.take_nmi(), "{cpu:x?} {events}");
        }
    }
}

#[test]
fn two_overflows_are_served_in_one_nmi_and_the_late_one_is_claimed() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let event = CountedEvent::new(0xc2, 0);
        let mut running = start(&machine, &[event.every(100), event.every(100), event.every(1000)]);
        let (mut handler, mut overflows) = (handler(), Vec::new());
        machine.count(100, true);
        nmi(&machine, &mut handler, &mut running, &mut keep(&mut overflows)).unwrap();
        assert_eq!(overflows.iter().map(|overflow| overflow.event).collect::<Vec<_>>(), [0, 1]);
        let mut rest = [Pmi::NotOurs; 2];
        for pmi in &mut rest {
            let mut sink = |_: Overflow| panic!("nothing has overflowed");
            let mut source = running.source(&mut sink);
            let (mut msr, mut apic) = (machine.clone(), machine.clone());
            *pmi = handler.handle_at(7, &mut msr, &mut apic, &mut [&mut source]).unwrap();
        }
        assert_eq!(rest, [Pmi::Unknown, Pmi::NotOurs], "{cpu:x?}");
    }
}

#[test]
fn an_nmi_without_an_overflow_is_not_ours_and_nothing_is_lost() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let mut running = start(&machine, &[CountedEvent::new(0xc2, 0).every(100)]);
        machine.count(60, true);
        let pmi = nmi(&machine, &mut handler(), &mut running, &mut |_| panic!("nothing has overflowed"));
        assert_eq!(pmi, Ok(Pmi::NotOurs));
        machine.count(40, true);
        assert!(machine.take_nmi(), "{cpu:x?}: it goes on where it was");
    }
}

#[test]
fn nothing_counts_while_the_handler_works() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let mut running =
            start(&machine, &[CountedEvent::new(0xc0, 0), CountedEvent::new(0xc2, 0).every(100)]);
        machine.count(100, true);
        let handlers_own = machine.clone();
        nmi(&machine, &mut handler(), &mut running, &mut move |_| {
            handlers_own.count(50, false);
            true
        })
        .unwrap();
        assert_eq!([0, 1].map(|n| running.count(n).unwrap()), [Some(100); 2], "{cpu:x?}");
        machine.count(1, true);
        assert_eq!([0, 1].map(|n| running.count(n).unwrap()), [Some(101); 2], "{cpu:x?}");
    }
}

#[test]
fn overflows_without_room_are_lost_and_counted() {
    let machine = Machine::new(fake::ZEN_2);
    let mut running = start(&machine, &[CountedEvent::new(0xc2, 0).every(100)]);
    for _ in 0..3 {
        machine.count(100, true);
        assert_eq!(nmi(&machine, &mut handler(), &mut running, &mut |_| false), Ok(Pmi::Served));
    }
    assert_eq!(running.overflows(), &OverflowCounts { lost: 3, ..Default::default() });
}

#[test]
fn counters_that_are_given_up_stand_still_which_is_counted_and_go_on_with_the_next_interrupt() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let mut running = start(&machine, &[CountedEvent::new(0xc2, 0).every(100)]);
        let mut handler = handler();
        machine.count(100, true);
        let mut sink = |_: Overflow| true;
        let pmi = {
            let (mut msr, mut apic) = (machine.clone(), machine.clone());
            handler.give_up(&mut msr, &mut apic, &mut [&mut running.source(&mut sink)])
        };
        assert_eq!(pmi, Ok(Pmi::Stuck), "{cpu:x?}");
        assert_eq!(running.overflows(), &OverflowCounts { taken: 1, abandoned: 1, ..Default::default() });
        machine.count(7, true);
        assert_eq!(running.count(0), Ok(Some(100)), "{cpu:x?}");
        // An NMI of another cause.
        assert_eq!(nmi(&machine, &mut handler, &mut running, &mut |_| true), Ok(Pmi::NotOurs), "{cpu:x?}");
        machine.count(1, true);
        assert_eq!(running.count(0), Ok(Some(101)), "{cpu:x?}");
    }
}

#[test]
fn overflows_that_a_stop_finds_are_counted_and_their_nmis_claimed() {
    for cpu in PARTS {
        for (events, unseen) in [(99, 0), (100, 1)] {
            let machine = Machine::new(cpu);
            let event = CountedEvent::new(0xc2, 0);
            let running = start(&machine, &[event, event.every(100), event.every(1000)]);
            machine.count(events, true);
            let mut handler = handler();
            let stopped = running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler);
            assert_eq!(stopped.overflows, OverflowCounts { unseen, ..Default::default() });
            assert_eq!(stopped.totals(), [events; 3]);
            let verdict = if unseen > 0 { Pmi::Unknown } else { Pmi::NotOurs };
            assert_eq!(nmi_without(&machine, &mut handler), verdict, "{cpu:x?} {events}");
            assert_eq!(nmi_without(&machine, &mut handler), Pmi::NotOurs);
        }
    }
}

#[test]
fn ibs_and_counters_share_a_handler() {
    use crate::amd::ibs;
    let machine = Machine::new(fake::ZEN_4);
    let mut counters = start(&machine, &[CountedEvent::new(0xc2, 0).every(100)]);
    let mut unit = ibs::IbsUnit::detect(machine.cpuid(), machine.clone()).unwrap();
    unit.route(&mut machine.clone(), None).unwrap();
    let mut ops = unit.start(&ibs::IbsConfig::new().op(0x1000)).map_err(|failed| failed.error()).unwrap();
    machine.count(100, true);
    assert!(machine.op(0x40_1000, 0, 0));
    struct Count(u64);
    impl ibs::SampleSink for Count {
        fn sample(&mut self, _: &pugmark_decoder_core::ibs::Sample) -> bool {
            self.0 += 1;
            true
        }
    }
    let (mut handler, mut overflows, mut samples) = (handler(), 0, Count(0));
    for (at, verdict) in (0..).zip([Pmi::Served, Pmi::Unknown, Pmi::NotOurs]) {
        let mut sink = |_: Overflow| {
            overflows += 1;
            true
        };
        let (mut first, mut second) = (counters.source(&mut sink), ops.source(&mut samples));
        let (mut msr, mut apic) = (machine.clone(), machine.clone());
        let pmi = handler.handle_at(at, &mut msr, &mut apic, &mut [&mut first, &mut second]);
        assert_eq!(pmi, Ok(verdict));
    }
    assert_eq!((overflows, samples.0), (1, 1));
}

#[test]
fn a_count_without_a_period_has_no_overflow_that_is_missed() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let event = CountedEvent::new(0xc0, 0);
        let running = start(&machine, &[event, event.every(100)]);
        machine.count(SIGN + 5, true);
        let mut handler = handler();
        let stopped = running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler);
        assert_eq!(stopped.overflows, OverflowCounts { unseen: 1, ..Default::default() }, "{cpu:x?}");
        assert_eq!(stopped.totals(), [SIGN + 5; 2]);
    }
}

#[test]
fn a_source_may_ask_after_an_overflow_and_not_before() {
    use crate::pmi::PmiSource;
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let mut running =
            start(&machine, &[CountedEvent::new(0xc0, 0), CountedEvent::new(0xc2, 0).every(100)]);
        for (events, asks) in [(0, false), (99, false), (1, true), (5, true)] {
            machine.count(events, true);
            let mut sink = |_: Overflow| true;
            assert_eq!(running.source(&mut sink).may_ask(), Ok(asks), "{cpu:x?} {events}");
        }
        nmi(&machine, &mut handler(), &mut running, &mut |_| true).unwrap();
        let mut sink = |_: Overflow| true;
        assert_eq!(running.source(&mut sink).may_ask(), Ok(false), "{cpu:x?}: it is served");
    }
}

#[test]
fn bits_of_other_counters_in_the_global_registers_stay_as_they_are() {
    // PerfCntrGlobalCtl before the start. Counter 0 is in use, so 1 and 2 are taken.
    for found in [0b000_001, 0b000_011, 0b101_001, 0b111_111] {
        let machine = Machine::new(fake::ZEN_4);
        machine.set(registers(fake::ZEN_4, 0).0, 1 << 22 | 0x76);
        machine.set(GLOBAL_CTL, found);
        machine.set(GLOBAL_STATUS, 0b101_001);
        let event = CountedEvent::new(0xc2, 0);
        let mut running = start(&machine, &[event.every(100), event.every(1000)]);
        assert_eq!([running.counter(0), running.counter(1)], [Some(1), Some(2)]);
        assert_eq!(machine.get(GLOBAL_CTL), found | 0b110, "{found:#b}");
        machine.count(100, true);
        let seen = machine.clone();
        nmi(&machine, &mut handler(), &mut running, &mut move |_| {
            assert_eq!(seen.get(GLOBAL_CTL), found & !0b110, "only these stand still");
            true
        })
        .unwrap();
        assert_eq!((machine.get(GLOBAL_CTL), machine.get(GLOBAL_STATUS)), (found | 0b110, 0b101_001));
        running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler());
        assert_eq!((machine.get(GLOBAL_CTL), machine.get(GLOBAL_STATUS)), (found, 0b101_001), "{found:#b}");
    }
}
