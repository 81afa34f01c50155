//! #GP at each access, one after the other.

use super::*;
use crate::amd::fake::{self, FETCH_CTL, OP_CTL};
use crate::amd::ibs::IbsRefusal;
use crate::lifecycle::{NotStarted, StartError};

const PARTS: [Cpu; 6] =
    [fake::BARCELONA, fake::BULLDOZER, fake::TRINITY, fake::ZEN_2, fake::ZEN_4, fake::ZEN_6];

fn both() -> IbsConfig {
    IbsConfig::new().fetch(0x1000).op(0x1000)
}

#[test]
fn a_start_that_faults_leaves_the_units_off_and_at_hand() {
    for cpu in PARTS {
        for access in 0.. {
            let machine = Machine::new(cpu);
            let unit = unit(&machine);
            machine.fault_in(access);
            let Err(failed) = unit.start(&both()) else {
                assert!(access >= 4, "{access} accesses");
                break;
            };
            let NotStarted::Off { unit, error, .. } = failed else { panic!("{failed}") };
            assert!(matches!(error, StartError::Fault(_)), "{error}");
            let on = machine.get(FETCH_CTL) >> 48 & 1 | machine.get(OP_CTL) >> 17 & 1;
            assert_eq!(on, 0, "{cpu:x?} access {access}");
            let mut running = unit.start(&both()).map_err(|failed| failed.error()).unwrap();
            assert!(machine.fetch(0, 0x40_1000, 0) && machine.op(0x40_1004, 0, 0));
            nmi(&machine, &mut handler(), &mut running, &mut Room::new()).unwrap();
        }
    }
}

#[test]
fn a_handler_that_faults_loses_no_sample_takes_none_twice_and_rearms_the_next_time() {
    for cpu in PARTS {
        for access in 0.. {
            let (machine, mut running) = start(cpu, both());
            let (mut handler, mut sink) = (handler(), Room::new());
            assert!(machine.fetch(0, 0x40_1000, 0) && machine.op(0x40_1004, 0, 0));
            machine.fault_in(access);
            if nmi(&machine, &mut handler, &mut running, &mut sink).is_ok() {
                assert!(access > 10, "{access} accesses");
                break;
            }
            // The second unit's NMI.
            let pmi = nmi(&machine, &mut handler, &mut running, &mut sink).unwrap();
            assert_ne!(pmi, Pmi::NotOurs, "{cpu:x?} access {access}");
            assert_eq!(sink.addresses(), [Some(0x40_1000), Some(0x40_1004)], "{cpu:x?} access {access}");
            assert!(machine.fetch(0, 0x40_2000, 0), "{cpu:x?} access {access}: the fetch unit runs");
            assert!(machine.op(0x40_2004, 0, 0), "{cpu:x?} access {access}: the op unit runs");
            assert_eq!(nmi(&machine, &mut handler, &mut running, &mut sink), Ok(Pmi::Served));
            assert_eq!(sink.samples.len(), 4);
        }
    }
}

#[test]
fn a_unit_that_cannot_go_on_does_not_keep_the_other_from_it() {
    let (machine, mut running) = start(fake::ZEN_4, both());
    assert!(machine.fetch(0, 0x40_1000, 0) && machine.op(0x40_1004, 0, 0));
    let mut sink = Room::new();
    // Up to the write of IbsFetchCtl all accesses are reads.
    for access in 0.. {
        machine.fault_in(access);
        let fault = nmi(&machine, &mut handler(), &mut running, &mut sink).unwrap_err();
        if fault.written.is_some() {
            assert_eq!(fault.address, FETCH_CTL);
            break;
        }
    }
    assert!(machine.op(0x40_2004, 0, 0));
}

#[test]
fn a_stop_that_faults_can_be_tried_again_and_takes_no_sample_twice() {
    for cpu in PARTS {
        for access in 0.. {
            let (machine, running) = start(cpu, both());
            let mut handler = handler();
            assert!(machine.fetch(0, 0x40_1000, 0) && machine.op(0x40_1004, 0, 0));
            machine.fault_in(access);
            let Err(failed) = running.stop() else {
                assert!(access > 10, "{access} accesses");
                break;
            };
            assert_eq!(nmi_without(&machine, &mut handler), Pmi::NotOurs, "nothing is stopped");
            let stopped = stop(failed.running, &mut handler);
            assert_eq!((stopped.counts.fetches, stopped.counts.ops), (1, 1), "{cpu:x?} access {access}");
            assert_eq!(addresses(stopped.last()), [Some(0x40_1000), Some(0x40_1004)]);
            assert_eq!((machine.get(FETCH_CTL), machine.get(OP_CTL)), (0, 0));
            // The interrupts of both units, whichever stopped first.
            for verdict in [Pmi::Unknown, Pmi::Unknown, Pmi::NotOurs] {
                assert_eq!(nmi_without(&machine, &mut handler), verdict);
            }
        }
    }
}

#[test]
fn a_stop_that_is_tried_again_leaves_a_unit_alone_that_it_gave_back() {
    for cpu in PARTS {
        let mut given_back = [false; 2];
        for access in 0.. {
            let (machine, running) = start(cpu, both());
            machine.fault_in(access);
            let Err(failed) = running.stop() else { break };
            machine.writes();
            let units = [FETCH_CTL, OP_CTL];
            // A unit is released by the write of 0, which is the last one.
            let back = units.map(|ctl| machine.get(ctl) == 0 && failed.fault.address != ctl);
            stop(failed.running, &mut handler());
            let writes = machine.writes();
            for (n, ctl) in units.into_iter().enumerate().filter(|&(n, _)| back[n]) {
                assert!(writes.iter().all(|(address, _)| *address != ctl), "{cpu:x?} access {access}");
                given_back[n] = true;
            }
        }
        assert_eq!(given_back, [true; 2], "{cpu:x?}");
    }
}

#[test]
fn routing_reports_the_fault() {
    let machine = Machine::new(fake::ZEN_2);
    let mut unit = IbsUnit::detect(machine.cpuid(), machine.clone()).unwrap();
    machine.fault_in(0);
    assert!(matches!(unit.route(&mut machine.clone(), None), Err(crate::amd::EilvtError::Fault(_))));
    assert_eq!(unit.start(&both()).err().unwrap().error(), StartError::Refused(IbsRefusal::NotRouted));
}
