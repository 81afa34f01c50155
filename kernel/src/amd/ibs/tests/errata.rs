//! The driver's workaround of each erratum, and its absence on other processors. `decoder-core` handles the effects on
//! a sample's values.

use super::*;
use crate::amd::fake::{self, FETCH_CTL, FETCH_CTL2, OP_CTL, OP_CTL2, OP_DATA3};

const FETCH_EN: u64 = 1 << 48;
const OP_EN: u64 = 1 << 17;

/// Returns the writes that resume a unit after its sample.
fn rearm(cpu: Cpu, config: IbsConfig) -> Vec<(u32, u64)> {
    let (machine, mut running) = start(cpu, config);
    assert!(machine.fetch(0, 0x40_1000, 0) || machine.op(0x40_1000, 0, 0));
    machine.writes();
    nmi(&machine, &mut handler(), &mut running, &mut Room::new()).unwrap();
    machine.writes()
}

#[test]
fn a_fetch_counter_that_does_not_begin_anew_gets_a_rising_edge() {
    let plain = vec![(FETCH_CTL, FETCH_EN | 0x100)];
    let edge = vec![(FETCH_CTL, 0), (FETCH_CTL, FETCH_EN | 0x100)];
    let family = |family, model| Cpu { family, model, ..fake::ZEN_2 };
    // 719: family 15h models 10h-1Fh. Without a number: families 16h to 18h.
    let table = [
        (fake::BARCELONA, &plain),
        (fake::BULLDOZER, &plain),
        (family(0x15, 0x0f), &plain),
        (fake::TRINITY, &edge),
        (family(0x15, 0x1f), &edge),
        (family(0x15, 0x30), &plain),
        (family(0x16, 0x00), &edge),
        (fake::ZEN_1, &edge),
        (fake::ZEN_2, &edge),
        (family(0x18, 0x00), &edge),
        (fake::ZEN_3, &plain),
        (fake::ZEN_4, &plain),
    ];
    for (cpu, writes) in table {
        assert_eq!(rearm(cpu, IbsConfig::new().fetch(0x1000)), *writes, "{cpu:x?}");
    }
}

#[test]
fn erratum_718_sticky_bits_of_data3_are_cleared_before_the_next_op() {
    let plain = vec![(OP_CTL, OP_EN | 0x100)];
    let cleared = vec![(OP_DATA3, 0), (OP_CTL, OP_EN | 0x100)];
    let family = |family, model| Cpu { family, model, ..fake::BULLDOZER };
    let table = [
        (fake::BARCELONA, &plain),
        (fake::BULLDOZER, &cleared),
        (fake::TRINITY, &cleared),
        (family(0x15, 0x1f), &cleared),
        (family(0x15, 0x20), &plain),
        (fake::ZEN_2, &plain),
    ];
    for (cpu, writes) in table {
        assert_eq!(rearm(cpu, IbsConfig::new().op(0x1000)), *writes, "{cpu:x?}");
    }
}

#[test]
fn erratum_420_the_period_goes_before_the_enable_bit_and_a_late_op_is_claimed() {
    let config = IbsConfig::new().fetch(0x1000).fetch_random().op(0x1000);
    let (machine, running) = start(fake::BARCELONA, config);
    machine.writes();
    let mut handler = handler();
    stop(running, &mut handler);
    assert_eq!(
        machine.writes(),
        [(FETCH_CTL, FETCH_EN | 1 << 57), (FETCH_CTL, 0), (OP_CTL, OP_EN), (OP_CTL, 0)]
    );
    machine.late_op();
    assert!(machine.take_nmi());
    assert_eq!(nmi_without(&machine, &mut handler), Pmi::Unknown);
    // The register still holds a value, but no sample was taken.
    let running = unit(&machine).start(&config).map_err(|failed| failed.error()).unwrap();
    let stopped = stop(running, &mut handler);
    assert_eq!((stopped.counts.ops, stopped.last().count()), (0, 0));
}

#[test]
fn elsewhere_a_write_stops_a_unit_and_its_disable_bit_goes_first() {
    let config = IbsConfig::new().fetch(0x1000).op(0x1000).user_only();
    let table = [
        (fake::BULLDOZER, vec![(FETCH_CTL, 0), (OP_CTL, 0)]),
        (fake::ZEN_2, vec![(FETCH_CTL, 0), (OP_CTL, 0)]),
        (fake::ZEN_6, vec![(FETCH_CTL2, 1 << 5 | 1), (FETCH_CTL, 0), (OP_CTL2, 1 << 2 | 1), (OP_CTL, 0)]),
    ];
    for (cpu, writes) in table {
        let (machine, running) = start(cpu, config);
        machine.writes();
        stop(running, &mut handler());
        assert_eq!(machine.writes(), writes, "{cpu:x?}");
    }
}

#[test]
fn erratum_1197_a_fetch_at_0_is_dropped_and_counted() {
    for (cpu, dropped) in [(fake::ZEN_3, true), (fake::ZEN_2, false), (fake::ZEN_4, false)] {
        let (machine, mut running) = start(cpu, IbsConfig::new().fetch(0x1000));
        let mut sink = Room::new();
        machine.fetch(0, 0, 0);
        assert_eq!(nmi(&machine, &mut handler(), &mut running, &mut sink), Ok(Pmi::Served));
        assert_eq!(running.counts().unplaced, u64::from(dropped), "{cpu:x?}");
        assert_eq!(sink.samples.is_empty(), dropped);
        assert!(machine.fetch(0, 0x40_1000, 0), "it goes on");
    }
}
