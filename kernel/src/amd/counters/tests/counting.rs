use super::*;
use crate::amd::fake;

const PARTS: [Cpu; 5] = [fake::K8, fake::BARCELONA, fake::BULLDOZER, fake::ZEN_2, fake::ZEN_4];

#[test]
fn counts_are_the_events_of_their_levels() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let event = CountedEvent::new(0xc0, 0);
        machine.count(7, true);
        let mut running = start(&machine, &[event, event.os(false), event.user(false)]);
        machine.count(1000, true);
        machine.count(30, false);
        assert_eq!([0, 1, 2, 3].map(|n| running.count(n).unwrap()), [Some(1030), Some(1000), Some(30), None]);
        machine.count(1, true);
        let stopped = running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler());
        assert_eq!(stopped.totals(), [1031, 1001, 30], "{cpu:x?}");
        machine.count(5, true);
        // The unit can be used again, from 0 on.
        let mut running = stopped.unit.start(&[event]).map_err(|failed| failed.error()).unwrap();
        machine.count(2, true);
        assert_eq!(running.count(0), Ok(Some(2)));
    }
}

#[test]
fn a_count_goes_on_where_the_counter_wraps() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let mut running = start(&machine, &[CountedEvent::new(0xc0, 0)]);
        let mut total = 0;
        for step in [SIGN - 3, 2, 5, SIGN - 1, 10, SIGN + 7] {
            machine.count(step, true);
            total += step;
            assert_eq!(running.count(0), Ok(Some(total)), "{cpu:x?}");
            let pmi = nmi(&machine, &mut handler(), &mut running, &mut |_| panic!("nobody samples"));
            assert_eq!(pmi, Ok(if machine.take_nmi() { Pmi::Served } else { Pmi::NotOurs }));
            assert_eq!(running.count(0), Ok(Some(total)), "{cpu:x?}");
        }
        let stopped = running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler());
        assert_eq!(stopped.totals(), [total]);
        assert_eq!(stopped.overflows, Default::default());
    }
}

#[test]
fn rdpmc_gives_the_same_count() {
    for cpu in PARTS {
        let machine = Machine::new(cpu);
        let event = CountedEvent::new(0xc0, 0);
        let mut running = start(&machine, &[event, event.on(0), event.every(100)]);
        for _ in 0..3 {
            machine.count(70, true);
            for n in 0..3 {
                let rdpmc = running.rdpmc(n).unwrap();
                assert_eq!(Some(rdpmc.index()), running.counter(n).map(u32::from));
                let counter = machine.get(registers(cpu, rdpmc.index()).1);
                assert_eq!(Some(rdpmc.count(counter)), running.count(n).unwrap(), "{cpu:x?}");
            }
            nmi(&machine, &mut handler(), &mut running, &mut |_| true).unwrap();
        }
        assert_eq!(running.rdpmc(3), None);
    }
    // After the core's six counters there are others.
    let machine = Machine::new(Cpu { perfmon: (1, 8), ..fake::ZEN_4 });
    let running = start(&machine, &[CountedEvent::new(0xc0, 0).on(5), CountedEvent::new(0xc0, 0).on(6)]);
    assert!(running.rdpmc(0).is_some() && running.rdpmc(1).is_none());
}

#[test]
fn a_stop_leaves_the_registers_as_after_a_reset() {
    for cpu in PARTS {
        for (dropped, global) in [(false, 0), (true, 0), (false, 0x3f), (true, 0x3f)] {
            let machine = Machine::new(cpu);
            // Other owners, who do not use this register, must find the counters' bits unchanged.
            machine.set(GLOBAL_CTL, global);
            let running =
                start(&machine, &[CountedEvent::new(0xc0, 0), CountedEvent::new(0xc2, 0).every(100)]);
            machine.count(100, true);
            match dropped {
                true => drop(running),
                false => {
                    running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler());
                }
            }
            for n in 0..2 {
                let (select, counter) = registers(cpu, n);
                assert_eq!((machine.get(select), machine.get(counter)), (0, 0), "{cpu:x?}");
            }
            assert_eq!((machine.get(GLOBAL_CTL), machine.get(GLOBAL_STATUS)), (global, 0));
        }
    }
}

#[test]
fn with_version_2_counters_start_and_stand_still_together() {
    let machine = Machine::new(fake::ZEN_4);
    machine.set(GLOBAL_STATUS, 0b11);
    machine.set(GLOBAL_CTL, 0x3f);
    let _running = start(&machine, &[CountedEvent::new(0xc0, 0), CountedEvent::new(3, 1)]);
    let writes = machine.writes();
    // Nothing counts yet, old status bits are cleared, and the last write starts all, also the second counter of a
    // pair.
    assert_eq!(writes[..2], [(GLOBAL_CTL, 0x38), (0xc000_0302, 0b111)]);
    assert_eq!(writes.last(), Some(&(GLOBAL_CTL, 0x3f)));
}

#[test]
fn a_pair_has_the_merge_event_in_its_second_counter_and_is_negative_there() {
    let machine = Machine::new(fake::ZEN_2);
    let mut running = start(&machine, &[CountedEvent::new(3, 0xff).every(0x1000)]);
    let merge = |machine: &Machine| [0xc001_0202, 0xc001_0203].map(|register| machine.get(register));
    assert_eq!(merge(&machine), [0xf_0040_00ff, 0xffff]);
    assert_eq!(machine.get(0xc001_0201), (1 << 48) - 0x1000);
    machine.set(0xc001_0203, 0);
    machine.count(0x1000, true);
    assert_eq!(nmi(&machine, &mut handler(), &mut running, &mut |_| true), Ok(Pmi::Served));
    assert_eq!(merge(&machine), [0xf_0040_00ff, 0xffff]);
    drop(running);
    assert_eq!(merge(&machine), [0, 0]);
}

#[test]
fn host_only_follows_svm() {
    for cpu in [fake::BARCELONA, fake::ZEN_4] {
        let machine = Machine::new(cpu);
        let mut running = start(&machine, &[CountedEvent::new(0xc0, 0).host_only()]);
        machine.count(10, true);
        machine.set(fake::EFER, 1 << 12);
        running.svm_changed().unwrap();
        assert_eq!(machine.get(registers(cpu, 0).0) >> 41 & 1, 1);
        machine.count(5, true);
        assert_eq!(running.count(0), Ok(Some(15)), "{cpu:x?}");
        machine.set(fake::EFER, 0);
        running.svm_changed().unwrap();
        machine.count(1, true);
        assert_eq!(running.count(0), Ok(Some(16)), "{cpu:x?}");
    }
}
