use super::*;
use crate::amd::fake::{self, FETCH_CTL, OP_CTL};
use crate::amd::ibs::IbsCounts;
use crate::lapic::{LocalApic, LvtPc};

const RIP_INVALID: u64 = 1 << 38;

#[test]
fn both_units_are_served_in_one_nmi_and_the_other_one_is_claimed() {
    let (machine, mut running) = start(fake::ZEN_2, IbsConfig::new().fetch(0x1000).op(0x1000));
    let (mut handler, mut sink) = (handler(), Room::new());
    assert!(machine.fetch(1 << 50, 0x40_1000, 0));
    assert!(machine.op(0x40_1004, 0, 0));
    assert!(machine.take_nmi());
    assert_eq!(nmi(&machine, &mut handler, &mut running, &mut sink), Ok(Pmi::Served));
    assert_eq!(sink.addresses(), [Some(0x40_1000), Some(0x40_1004)]);
    // Both units run again.
    assert!(machine.fetch(0, 0x40_2000, 0) && machine.take_nmi());
    assert!(machine.take_nmi());
    assert_eq!(nmi(&machine, &mut handler, &mut running, &mut sink), Ok(Pmi::Served));
    // The second interrupt of the first unit, at another address; then an NMI of another cause.
    for verdict in [Pmi::Unknown, Pmi::NotOurs] {
        let mut source = running.source(&mut sink);
        let pmi = handler.handle_at(7, &mut machine.clone(), &mut machine.clone(), &mut [&mut source]);
        assert_eq!(pmi, Ok(verdict));
    }
    assert_eq!(sink.samples.len(), 3);
    assert_eq!(running.counts(), &IbsCounts { fetches: 2, ops: 1, ..IbsCounts::default() });
}

#[test]
fn a_unit_that_is_given_up_waits_which_is_counted_and_goes_on_with_the_next_interrupt() {
    let (machine, mut running) = start(fake::ZEN_2, IbsConfig::new().op(0x1000));
    let (mut handler, mut sink) = (handler(), Room::new());
    assert!(machine.op(0x40_1000, 0, 0));
    let pmi = {
        let (mut msr, mut apic) = (machine.clone(), machine.clone());
        handler.give_up(&mut msr, &mut apic, &mut [&mut running.source(&mut sink)])
    };
    assert_eq!(pmi, Ok(Pmi::Stuck));
    assert_eq!(running.counts(), &IbsCounts { ops: 1, abandoned: 1, ..IbsCounts::default() });
    assert!(!machine.op(0x40_2000, 0, 0), "it does not sample");
    // An NMI of another cause.
    assert_eq!(nmi(&machine, &mut handler, &mut running, &mut sink), Ok(Pmi::NotOurs));
    assert!(machine.op(0x40_3000, 0, 0));
    assert_eq!(nmi(&machine, &mut handler, &mut running, &mut sink), Ok(Pmi::Served));
    assert_eq!(sink.addresses(), [Some(0x40_1000), Some(0x40_3000)]);
}

#[test]
fn the_counters_lvt_entry_is_somebody_elses() {
    let (machine, mut running) = start(fake::ZEN_2, IbsConfig::new().op(0x1000));
    let (mut handler, mut sink) = (handler(), Room::new());
    // Masked, with the vector of another driver.
    let entry = LvtPc(0x1_00ef);
    // SAFETY: the register represents no hardware.
    unsafe { machine.clone().set_lvt_pc(entry) }.unwrap();
    assert!(machine.op(0x40_1000, 0, 0));
    assert_eq!(nmi(&machine, &mut handler, &mut running, &mut sink), Ok(Pmi::Served));
    stop(running, &mut handler);
    assert_eq!(nmi_without(&machine, &mut handler), Pmi::Unknown, "its late NMI");
    assert_eq!(machine.clone().lvt_pc(), Ok(entry));
}

#[test]
fn an_nmi_without_a_sample_is_not_ours() {
    let (machine, mut running) = start(fake::ZEN_2, IbsConfig::new().fetch(0x1000).op(0x1000));
    machine.writes();
    machine.reads();
    assert_eq!(nmi(&machine, &mut handler(), &mut running, &mut Room::new()), Ok(Pmi::NotOurs));
    assert_eq!(machine.writes(), [], "the counts go on");
    assert!(
        machine.reads().iter().all(|read| [FETCH_CTL, OP_CTL].contains(read)),
        "there is nothing to read"
    );
}

#[test]
fn a_unit_that_was_not_started_is_not_looked_at() {
    let (machine, mut running) = start(fake::ZEN_2, IbsConfig::new().op(0x1000));
    // Left by an earlier owner.
    machine.set(FETCH_CTL, 1 << 49);
    machine.reads();
    assert_eq!(nmi(&machine, &mut handler(), &mut running, &mut Room::new()), Ok(Pmi::NotOurs));
    assert!(!machine.reads().contains(&FETCH_CTL));
}

#[test]
fn a_sample_has_the_registers_that_the_processor_has() {
    // (processor, registers that are read, registers that are not)
    let op: [u32; 6] = [0xc001_1034, 0xc001_1035, 0xc001_1036, 0xc001_1037, 0xc001_1038, 0xc001_1039];
    let table = [
        (fake::BARCELONA, vec![], vec![0xc001_103b, 0xc001_103c, 0xc001_103d]),
        (fake::BULLDOZER, vec![0xc001_103b], vec![0xc001_103c, 0xc001_103d]),
        (fake::ZEN_2, vec![0xc001_103b, 0xc001_103c], vec![0xc001_103d]),
        (Cpu { ibs: 0x7ff, ..fake::ZEN_2 }, vec![0xc001_103b, 0xc001_103c, 0xc001_103d], vec![]),
    ];
    for (cpu, more, not) in table {
        let (machine, mut running) = start(cpu, IbsConfig::new().fetch(0x1000).op(0x1000));
        for (register, value) in (0xc001_1034..=0xc001_103d).zip(0x11u64..) {
            machine.set(register, value << 8);
        }
        machine.fetch(1 << 52, 0x40_1000, 0x1000);
        machine.op(0x40_1004, 0x77, 0);
        machine.reads();
        let mut sink = Room::new();
        nmi(&machine, &mut handler(), &mut running, &mut sink).unwrap();
        let reads = machine.reads();
        assert!(op.iter().chain(&more).all(|register| reads.contains(register)), "{cpu:x?}");
        assert!(not.iter().all(|register| !reads.contains(register)), "{cpu:x?}");
        let [Sample::Fetch(fetch), Sample::Op(op)] = sink.samples[..] else { panic!("two samples") };
        let has = |register: u32, value: u64| if more.contains(&register) { value } else { 0 };
        let registers = *fetch.registers();
        assert_eq!((registers.linear, registers.physical), (0x40_1000, 0x1000));
        assert_eq!(registers.extended, has(0xc001_103c, 0x1900));
        let registers = *op.registers();
        assert_eq!((registers.rip, registers.data, registers.data2), (0x40_1004, 0x77, 0x1300));
        assert_eq!((registers.data3, registers.dc_linear, registers.dc_physical), (0x1400, 0x1500, 0x1600));
        assert_eq!(registers.br_target, has(0xc001_103b, 0x1800));
        assert_eq!(registers.data4, has(0xc001_103d, 0x1a00));
    }
}

#[test]
fn the_physical_address_of_a_fetch_is_read_where_it_is_valid() {
    for valid in [0, 1] {
        let (machine, mut running) = start(fake::ZEN_2, IbsConfig::new().fetch(0x1000));
        machine.fetch(valid << 52, 0x40_1000, 0x1000);
        machine.reads();
        nmi(&machine, &mut handler(), &mut running, &mut Room::new()).unwrap();
        assert_eq!(machine.reads().contains(&0xc001_1032), valid == 1);
    }
}

#[test]
fn samples_of_the_wrong_level_are_dropped_and_counted() {
    let kernel = 0xffff_ffff_8100_0000;
    let config = IbsConfig::new().fetch(0x1000).op(0x1000);
    // (configuration, address, RIP is invalid, fates of fetch and op: 0 taken, 1 filtered, 2 unplaced)
    let table = [
        (config, 0x40_1000, false, [0, 0]),
        (config, kernel, false, [0, 0]),
        (config, kernel, true, [0, 0]),
        (config.kernel_only(), 0x40_1000, false, [1, 1]),
        (config.kernel_only(), kernel, false, [0, 0]),
        (config.user_only(), 0x40_1000, false, [0, 0]),
        (config.user_only(), kernel, false, [1, 1]),
        // The address is unknown.
        (config.user_only(), 0x40_1000, true, [0, 2]),
        (config.kernel_only(), kernel, true, [0, 2]),
    ];
    for (config, address, invalid, fates) in table {
        let (machine, mut running) = start(fake::ZEN_2, config);
        let mut sink = Room::new();
        machine.fetch(0, address, 0);
        machine.op(address, u64::from(invalid) * RIP_INVALID, 0);
        nmi(&machine, &mut handler(), &mut running, &mut sink).unwrap();
        let of = |fate| fates.iter().filter(|n| **n == fate).count() as u64;
        let counts = *running.counts();
        assert_eq!((counts.filtered, counts.unplaced), (of(1), of(2)), "{config:?} {address:#x} {invalid}");
        assert_eq!(counts.fetches + counts.ops, of(0));
        assert_eq!(sink.samples.len() as u64, of(0));
        assert!(machine.op(0x40_1004, 0, 0), "it goes on");
    }
}

#[test]
fn samples_without_room_are_lost_and_counted() {
    let (machine, mut running) = start(fake::ZEN_2, IbsConfig::new().fetch(0x1000).op(0x1000));
    let mut sink = Room { room: 1, ..Room::new() };
    for _ in 0..3 {
        machine.fetch(0, 0x40_1000, 0);
        machine.op(0x40_1004, 0, 0);
        assert_eq!(nmi(&machine, &mut handler(), &mut running, &mut sink), Ok(Pmi::Served));
    }
    assert_eq!(running.counts(), &IbsCounts { fetches: 1, lost: 5, ..IbsCounts::default() });
}

#[test]
fn the_processors_random_begin_is_kept() {
    // (processor, period, random bits, count at which the next period begins)
    let table = [
        (fake::ZEN_2, 0x1000, 0x55, 0x55),
        // The upper bits that the count reached are not random.
        (fake::ZEN_2, 0x1000, 0xfff, 0x7f),
        (fake::ZEN_2, 0x90, 0x7f, 0x7f),
        // Without RdWrOpCnt.
        (fake::BARCELONA, 0x1000, 0x55, 0),
    ];
    for (cpu, period, random, begin) in table {
        let (machine, mut running) = start(cpu, IbsConfig::new().op(period));
        machine.op(0x40_1000, 0, random);
        nmi(&machine, &mut handler(), &mut running, &mut Room::new()).unwrap();
        assert_eq!(machine.get(OP_CTL), 1 << 17 | u64::from(period >> 4) | begin << 32, "{period:#x}");
    }
}

#[test]
fn a_random_period_by_software_varies_in_bits_7_to_4() {
    let (machine, mut running) =
        start(fake::BARCELONA, IbsConfig::new().op(0x12_3450 & 0xf_ffff).op_random());
    let mut seen = [0; 16];
    for _ in 0..320 {
        assert!(machine.op(0x40_1000, 0, 0));
        nmi(&machine, &mut handler(), &mut running, &mut Room::new()).unwrap();
        let ctl = machine.get(OP_CTL);
        assert_eq!(ctl & !0xf, 1 << 17 | 0x2340, "{ctl:#x}");
        seen[(ctl & 0xf) as usize] += 1;
    }
    assert!(seen.iter().all(|n| (5..40).contains(n)), "{seen:?}");
    // If the processor starts its count at random, the period stays.
    let (machine, mut running) = start(fake::ZEN_2, IbsConfig::new().op(0x1000).op_random());
    machine.op(0x40_1000, 0, 0);
    nmi(&machine, &mut handler(), &mut running, &mut Room::new()).unwrap();
    assert_eq!(machine.get(OP_CTL), 1 << 17 | 0x100);
}

#[test]
fn a_stop_takes_what_is_there_and_the_nmis_on_their_way_are_claimed() {
    // (configuration, NMIs that are claimed)
    let table = [(IbsConfig::new().op(0x1000), 1), (IbsConfig::new().fetch(0x1000).op(0x1000), 2)];
    for (config, nmis) in table {
        let (machine, running) = start(fake::ZEN_2, config);
        let mut handler = handler();
        machine.fetch(0, 0x40_1000, 0);
        machine.op(0x40_1004, 0, 0);
        let stopped = stop(running, &mut handler);
        assert_eq!(stopped.counts.fetches + stopped.counts.ops, nmis);
        assert_eq!(stopped.last().count() as u64, nmis);
        assert_eq!((machine.get(OP_CTL), machine.get(FETCH_CTL)), (0, 0));
        for _ in 0..nmis {
            assert_eq!(nmi_without(&machine, &mut handler), Pmi::Unknown);
        }
        assert_eq!(nmi_without(&machine, &mut handler), Pmi::NotOurs);
    }
}

#[test]
fn nmis_that_would_be_late_are_forgotten_when_time_has_passed() {
    let (machine, running) = start(fake::ZEN_2, IbsConfig::new().fetch(0x1000).op(0x1000));
    let mut handler = handler();
    stop(running, &mut handler);
    handler.forget_late();
    assert_eq!(nmi_without(&machine, &mut handler), Pmi::NotOurs);
}

#[test]
fn a_unit_that_was_stopped_starts_again() {
    let (machine, running) = start(fake::ZEN_2, IbsConfig::new().op(0x1000));
    let (mut handler, mut sink) = (handler(), Room::new());
    let unit = stop(running, &mut handler).unit;
    let mut running = unit.start(&IbsConfig::new().fetch(0x1000)).map_err(|failed| failed.error()).unwrap();
    assert!(!machine.op(0x40_1000, 0, 0) && machine.fetch(0, 0x40_1000, 0));
    assert_eq!(nmi(&machine, &mut handler, &mut running, &mut sink), Ok(Pmi::Served));
    assert_eq!(running.counts(), &IbsCounts { fetches: 1, ..IbsCounts::default() });
}

#[test]
fn dropping_stops() {
    let (machine, running) = start(fake::ZEN_6, IbsConfig::new().fetch(0x1000).op(0x1000));
    drop(running);
    assert_eq!((machine.get(OP_CTL), machine.get(FETCH_CTL)), (0, 0));
}

#[test]
fn random_periods_repeat_only_after_all_states_but_0() {
    use crate::amd::ibs::session::next_random;
    let mut state = next_random(1);
    let mut steps = 1;
    while state != 1 {
        assert!(state != 0 && steps < 0xffff);
        (state, steps) = (next_random(state), steps + 1);
    }
    assert_eq!(steps, 0xffff);
}
