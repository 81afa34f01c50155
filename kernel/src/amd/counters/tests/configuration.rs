use super::*;
use crate::amd::counters::constraints::Need;
use crate::amd::counters::{CountersRefusal, assign};
use crate::amd::{AmdCapabilities, fake};
use crate::lifecycle::{Absent, InUse, Missing, NotBacked, StartError};
use crate::msr::amd::PerfEvtSel;

const EN: u64 = 1 << 22;
const INT: u64 = 1 << 20;

fn capabilities(cpu: Cpu) -> AmdCapabilities {
    AmdCapabilities::read(Machine::new(cpu).cpuid()).unwrap()
}

#[test]
fn event_selects_are_the_manuals() {
    let event = CountedEvent::new(0xc0, 0);
    let base = EN | INT | 0xc0 | 1 << 16 | 1 << 17;
    // (event, SVM is on, written value)
    let table = [
        (event, false, base),
        (event.user(false), false, base & !(1 << 16)),
        (event.os(false), false, base & !(1 << 17)),
        (event.edges(), false, base | 1 << 18),
        (event.at_least(3), false, base | 3 << 24),
        (event.at_least(255).inverted(), false, base | 0xff << 24 | 1 << 23),
        (CountedEvent::new(0x1c0, 0x5a), false, base | 0x5a << 8 | 1 << 32),
        (CountedEvent::new(0xfc0, 0), false, base | 0xf << 32),
        (event.guest_only(), false, base | 1 << 40),
        (event.guest_only(), true, base | 1 << 40),
        // With SVM off the event would count nothing.
        (event.host_only(), false, base),
        (event.host_only(), true, base | 1 << 41),
        // Both bits together mean everything, also with SVM off.
        (event.host_only().guest_only(), false, base),
        (event.host_only().guest_only(), true, base),
        // An event select from elsewhere cannot set these bits.
        (CountedEvent::of(PerfEvtSel::from_bits_retain(base & !INT)), false, base),
    ];
    for (event, svm, written) in table {
        let machine = Machine::new(fake::ZEN_2);
        machine.set(fake::EFER, u64::from(svm) << 12 | 0x501);
        let _running = start(&machine, &[event]);
        assert_eq!(machine.get(0xc001_0200), written, "{event:?} {svm}");
    }
}

#[test]
fn what_a_processor_cannot_count_is_refused() {
    let event = CountedEvent::new(0xc0, 0);
    let reserved = |bits| Err(CountersRefusal::Reserved { event: 0, bits });
    let pin = CountedEvent::of(PerfEvtSel::OS | PerfEvtSel::PC);
    let period = |period| Err(CountersRefusal::Period { event: 0, period });
    let table = [
        (fake::K8, vec![event], Ok(())),
        (fake::K8, vec![], Err(CountersRefusal::Nothing)),
        (fake::K8, vec![event.user(false).os(false)], Err(CountersRefusal::NoLevel { event: 0 })),
        (fake::K8, vec![CountedEvent::new(0x1c0, 0)], reserved(PerfEvtSel::empty().with_event(0x100))),
        (fake::K8, vec![event.guest_only()], reserved(PerfEvtSel::GUEST_ONLY)),
        (fake::BARCELONA, vec![CountedEvent::new(0x1c0, 0).guest_only()], Ok(())),
        // Also if there is no SVM.
        (Cpu { features: 0, ..fake::BARCELONA }, vec![event.host_only()], Ok(())),
        (fake::K8, vec![pin], Ok(())),
        (fake::BARCELONA, vec![pin], Ok(())),
        (fake::BULLDOZER, vec![CountedEvent::of(PerfEvtSel::OS | PerfEvtSel::PC)], reserved(PerfEvtSel::PC)),
        (
            fake::ZEN_2,
            vec![CountedEvent::of(PerfEvtSel::OS | PerfEvtSel::from_bits_retain(1 << 21))],
            reserved(PerfEvtSel::from_bits_retain(1 << 21)),
        ),
        (fake::ZEN_2, vec![event.every(0)], period(0)),
        (fake::ZEN_2, vec![event.every(1)], Ok(())),
        (fake::ZEN_2, vec![event.every(1 << 47)], Ok(())),
        (fake::ZEN_2, vec![event.every((1 << 47) + 1)], period((1 << 47) + 1)),
        (fake::ZEN_2, vec![event, event.on(6)], Err(CountersRefusal::NoCounter { event: 1 })),
        (fake::ZEN_2, vec![event.on(200)], Err(CountersRefusal::NoCounter { event: 0 })),
        (fake::K8, vec![event; 5], Err(CountersRefusal::NotEnough { needed: 5, free: 0xf })),
        (fake::ZEN_2, vec![event; 6], Ok(())),
        (fake::ZEN_2, vec![event; 7], Err(CountersRefusal::NotEnough { needed: 7, free: 0x3f })),
        (fake::ZEN_2, vec![event; 99], Err(CountersRefusal::NotEnough { needed: 99, free: 0x3f })),
        // The second row has one pair too many.
        (fake::ZEN_2, vec![CountedEvent::new(3, 1); 3], Ok(())),
        (
            fake::ZEN_2,
            vec![CountedEvent::new(3, 1); 4],
            Err(CountersRefusal::NotEnough { needed: 8, free: 0x3f }),
        ),
        (fake::ZEN_2, vec![event.on(2); 2], Err(CountersRefusal::NotEnough { needed: 2, free: 0x3f })),
    ];
    for (cpu, events, verdict) in table {
        let machine = Machine::new(cpu);
        let started = unit(&machine).start(&events);
        match started {
            Ok(_) => assert_eq!(verdict, Ok(()), "{events:?}"),
            Err(failed) => {
                assert_eq!(Err(failed.error()), verdict.map_err(StartError::Refused), "{events:?}");
                assert_eq!(machine.writes(), []);
            }
        }
    }
}

#[test]
fn family_15h_counts_an_event_where_its_unit_is_wired_to() {
    let (all, low, high, third, first) = (0x3f, 0x07, 0x38, 0x08, 0x01);
    // (event, unit mask, counters)
    let table = [
        (0x000, 0x01, high),
        (0x000, 0xf0, high),
        (0x000, 0x11, third),
        (0x001, 0xff, high),
        (0x003, 0x01, third),
        (0x004, 0x01, high),
        (0x004, 0x03, third),
        (0x00b, 0x01, third),
        (0x011, 0x01, high),
        (0x00d, 0x01, third),
        (0x1cf, 0, all),
        (0x020, 0, all),
        (0x023, 0, low),
        (0x02d, 0, third),
        (0x02e, 0, 0x09),
        (0x031, 0x01, low),
        // One unit mask at a time.
        (0x031, 0x03, 0),
        (0x040, 0, all),
        (0x043, 0, low),
        (0x054, 0, low),
        (0x055, 0, low),
        (0x056, 0, all),
        (0x065, 0, low),
        (0x080, 0, low),
        (0x08f, 0, first),
        (0x187, 0, first),
        (0x188, 0, first),
        (0x0c0, 0, all),
        (0x1c0, 0, high),
        (0x0d0, 0, low),
        (0x0db, 0, all),
        (0x0df, 0, all),
        (0x1d6, 0, all),
        (0x1d8, 0, all),
        (0x0a0, 0, 0),
        // Events of the northbridge.
        (0x0e0, 0, 0),
        (0x1f0, 0, 0),
    ];
    for (event, mask, counters) in table {
        let need = Need::of(&CountedEvent::new(event, mask), &capabilities(fake::BULLDOZER));
        assert_eq!(need, Need { counters, pair: false }, "{event:#x}:{mask:#x}");
    }
}

#[test]
fn an_event_that_happens_too_often_takes_an_even_counter_and_the_next_one() {
    for (cpu, counters, pair) in
        [(fake::BARCELONA, 0xf, false), (fake::ZEN_2, 0x15, true), (fake::ZEN_4, 0x15, true)]
    {
        let need = Need::of(&CountedEvent::new(3, 0xff), &capabilities(cpu));
        assert_eq!(need, Need { counters, pair });
        let need = Need::of(&CountedEvent::new(4, 0xff), &capabilities(cpu));
        assert!(!need.pair);
    }
}

type Row<'a> = (&'a [Need], u16, Option<&'a [u8]>);

#[test]
fn the_choosy_come_first() {
    let need = |counters, pair| Need { counters, pair };
    let any = need(0x3f, false);
    let pair = need(0x15, true);
    // (needs, free, counters)
    let table: [Row; 10] = [
        (&[any, any], 0x3f, Some(&[0, 1])),
        (&[any, any], 0x28, Some(&[3, 5])),
        (&[any], 0, None),
        (&[any, need(1, false)], 0x3f, Some(&[1, 0])),
        (&[need(0x38, false), need(0x07, false), need(0x08, false)], 0x3f, Some(&[4, 0, 3])),
        // Found only after the first choice was revised.
        (&[need(0x03, false), need(0x05, false), need(0x03, false)], 0x07, Some(&[0, 2, 1])),
        (&[need(0x03, false), need(0x03, false), need(0x03, false)], 0x3f, None),
        (&[any, pair], 0x3f, Some(&[2, 0])),
        (&[any, pair], 0x0e, Some(&[1, 2])),
        (&[pair], 0x1a, None),
    ];
    for (needs, free, counters) in table {
        let assigned = assign::assign(needs, free);
        assert_eq!(assigned.as_ref().map(|all| &all[..needs.len()]), counters, "{needs:x?} {free:#x}");
    }
}

#[test]
fn what_somebody_uses_is_left_alone() {
    for cpu in [fake::K8, fake::ZEN_2, fake::ZEN_4] {
        let machine = Machine::new(cpu);
        let (select, counter) = registers(cpu, 0);
        machine.set(select, EN | 0x76);
        machine.set(counter, 0x1234);
        machine.set(GLOBAL_CTL, 1);
        let mut unit = unit(&machine);
        unit.reserve(0b10);
        let events = [CountedEvent::new(0xc0, 0), CountedEvent::new(0xc2, 0).every(100)];
        let mut running = unit.start(&events).map_err(|failed| failed.error()).unwrap();
        assert_eq!([running.counter(0), running.counter(1), running.counter(2)], [Some(2), Some(3), None]);
        machine.count(150, true);
        nmi(&machine, &mut handler(), &mut running, &mut |_| true).unwrap();
        running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler());
        let own = |(address, _): &(u32, u64)| *address != select && *address != counter;
        assert!(machine.writes().iter().all(own), "{cpu:x?}");
        assert_eq!(machine.get(GLOBAL_CTL), 1);
    }
}

#[test]
fn detection_says_what_is_missing_and_who_counts() {
    let detect = |machine: &Machine| CounterUnit::detect(machine.cpuid(), machine.clone()).err();
    assert_eq!(detect(&Machine::new(Cpu { family: 5, ..fake::K7 })), Some(Missing::Counters.into()));
    for cpu in [fake::K7, fake::ZEN_4] {
        let machine = Machine::new(cpu);
        machine.set(registers(cpu, 0).1, 0x77);
        assert_eq!(detect(&machine), None);
        assert_eq!(machine.get(registers(cpu, 0).1), 0x77, "the probe leaves nothing");
        machine.kill();
        assert!(matches!(detect(&machine), Some(Absent::NotBacked(NotBacked { read: 0, .. }))));
    }
    let machine = Machine::new(fake::K8);
    (0..4).for_each(|n| machine.set(0xc001_0000 + n, EN));
    assert_eq!(detect(&machine), Some(InUse::AllCounters.into()));
    assert_eq!(machine.writes(), []);
    for access in 0..8 {
        let machine = Machine::new(fake::K8);
        machine.fault_in(access);
        assert!(matches!(detect(&machine), Some(Absent::Fault(_))), "access {access}");
    }
}
