//! #GP at each access, one after the other.

use super::*;
use crate::amd::fake;
use crate::lifecycle::{NotStarted, StartError};

/// The parts to test: in Miri, which takes a thousand times as long, only the one with the most registers.
const PARTS: &[Cpu] =
    if cfg!(miri) { &[fake::ZEN_4] } else { &[fake::K8, fake::BULLDOZER, fake::ZEN_2, fake::ZEN_4] };

/// An event select of another owner that counts.
const SOMEBODYS: u64 = 1 << 22 | 0x76;

fn events(cpu: Cpu) -> Vec<CountedEvent> {
    let mut events = vec![
        CountedEvent::new(0xc0, 0),
        CountedEvent::new(0xc2, 0).every(100),
        CountedEvent::new(0xc2, 0).every(200),
    ];
    if cpu.family >= 0x17 {
        events.push(CountedEvent::new(3, 1));
    }
    events
}

#[test]
fn a_start_that_faults_leaves_the_counters_off_and_at_hand() {
    for &cpu in PARTS {
        for access in 0.. {
            let machine = Machine::new(cpu);
            let unit = unit(&machine);
            machine.fault_in(access);
            let Err(failed) = unit.start(&events(cpu)) else {
                assert!(access > 10, "{access} accesses");
                break;
            };
            let NotStarted::Off { unit, error, .. } = failed else { panic!("{failed}") };
            assert!(matches!(error, StartError::Fault(_)), "{error}");
            let what = format!("{cpu:x?} access {access}");
            for n in 0..4 {
                let (select, counter) = registers(cpu, n);
                assert_eq!((machine.get(select), machine.get(counter)), (0, 0), "{what}");
            }
            assert_eq!(machine.get(GLOBAL_CTL), 0, "{what}");
            let mut running = unit.start(&events(cpu)).map_err(|failed| failed.error()).unwrap();
            machine.count(7, true);
            assert_eq!(running.count(0), Ok(Some(7)), "{what}");
        }
    }
}

#[test]
fn a_start_that_faults_leaves_counters_alone_that_it_did_not_come_to() {
    for &cpu in PARTS {
        let mut untouched = 0;
        for access in 0.. {
            let machine = Machine::new(cpu);
            let unit = unit(&machine);
            // The counters are off and free, but their values may be another owner's last counts.
            let counters = [0, 1, 2].map(|n| registers(cpu, n).1);
            counters.iter().for_each(|&counter| machine.set(counter, 0x1234));
            machine.fault_in(access);
            let Err(failed) = unit.start(&events(cpu)[..3]) else { break };
            let StartError::Fault(fault) = failed.error() else { panic!("{failed}") };
            // The first write to a counter loads it: after the one that faults there is no write.
            if let Some(n) = counters.iter().position(|&counter| counter == fault.address) {
                for &counter in &counters[n + 1..] {
                    assert_eq!(machine.get(counter), 0x1234, "{cpu:x?} access {access}");
                    untouched += 1;
                }
            }
        }
        assert_eq!(untouched, 2 + 1, "{cpu:x?}");
    }
}

#[test]
fn a_stop_that_is_tried_again_leaves_counters_alone_that_it_gave_back() {
    for &cpu in PARTS {
        let mut given_back = 0;
        for access in 0.. {
            let machine = Machine::new(cpu);
            let running = start(&machine, &events(cpu)[..3]);
            machine.count(50, true);
            machine.fault_in(access);
            let Err(failed) = running.stop() else { break };
            let counters = [0, 1, 2].map(|n| registers(cpu, n));
            let cleared =
                |&(select, counter): &(u32, u32)| machine.get(select) == 0 && machine.get(counter) == 0;
            // The register that faulted is not cleared, and neither is the status of its counter.
            let back: Vec<_> = counters
                .into_iter()
                .filter(|counter| cleared(counter) && failed.fault.address & !0xff != 0xc000_0300)
                .collect();
            // Another owner takes the counters.
            back.iter().for_each(|&(select, _)| machine.set(select, SOMEBODYS));
            failed.running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler());
            for &(select, _) in &back {
                assert_eq!(machine.get(select), SOMEBODYS, "{cpu:x?} access {access}");
                given_back += 1;
            }
        }
        assert!(given_back > 0, "{cpu:x?}");
    }
}

#[test]
fn a_handler_that_faults_takes_no_overflow_twice_loses_no_event_and_rearms_the_next_time() {
    for &cpu in PARTS {
        for access in 0.. {
            let machine = Machine::new(cpu);
            let mut running = start(&machine, &events(cpu));
            let (mut handler, mut overflows) = (handler(), Vec::new());
            machine.count(200, true);
            machine.fault_in(access);
            if nmi(&machine, &mut handler, &mut running, &mut keep(&mut overflows)).is_ok() {
                assert!(access > 8, "{access} accesses");
                break;
            }
            let what = format!("{cpu:x?} access {access}");
            // The second counter's NMI.
            let pmi = nmi(&machine, &mut handler, &mut running, &mut keep(&mut overflows)).unwrap();
            assert_ne!(pmi, Pmi::NotOurs, "{what}");
            let mut seen: Vec<_> =
                overflows.iter().map(|overflow| (overflow.event, overflow.count)).collect();
            seen.sort_unstable();
            assert_eq!(seen, [(1, 200), (2, 200)], "{what}");
            while machine.take_nmi() {}
            machine.count(200, true);
            assert!(machine.take_nmi() && machine.take_nmi(), "{what}: both ask again");
            for n in 0..events(cpu).len() {
                assert_eq!(running.count(n), Ok(Some(400)), "{what}");
            }
        }
    }
}

#[test]
fn a_stop_that_faults_can_be_tried_again_and_counts_nothing_twice() {
    for &cpu in PARTS {
        for access in 0.. {
            let machine = Machine::new(cpu);
            let running = start(&machine, &events(cpu));
            let mut handler = handler();
            machine.count(150, true);
            machine.fault_in(access);
            let Err(failed) = running.stop() else {
                assert!(access > 10, "{access} accesses");
                break;
            };
            let what = format!("{cpu:x?} access {access}");
            let stopped = failed.running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut handler);
            assert_eq!(stopped.totals(), vec![150; events(cpu).len()], "{what}");
            assert_eq!(stopped.overflows.unseen, 1, "{what}");
            for n in 0..4 {
                let (select, counter) = registers(cpu, n);
                assert_eq!((machine.get(select), machine.get(counter)), (0, 0), "{what}");
            }
            assert_eq!((machine.get(GLOBAL_CTL), machine.get(GLOBAL_STATUS)), (0, 0), "{what}");
            for verdict in [Pmi::Unknown, Pmi::NotOurs] {
                assert_eq!(nmi_without(&machine, &mut handler), verdict, "{what}");
            }
        }
    }
}

#[test]
fn reading_and_following_svm_report_their_faults() {
    let machine = Machine::new(fake::ZEN_2);
    let mut running = start(&machine, &[CountedEvent::new(0xc0, 0).host_only()]);
    for (access, address) in [(0, 0xc001_0200), (1, 0xc001_0201)] {
        machine.fault_in(access);
        assert_eq!(running.count(0).unwrap_err().address, address);
    }
    for access in 0..2 {
        machine.fault_in(access);
        running.svm_changed().unwrap_err();
    }
    machine.set(fake::EFER, 1 << 12);
    running.svm_changed().unwrap();
    assert_eq!(machine.get(0xc001_0200) >> 41 & 1, 1);
}
