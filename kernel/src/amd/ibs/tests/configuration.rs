use super::*;
use crate::amd::fake::{self, FETCH_CTL, FETCH_CTL2, OP_CTL, OP_CTL2};
use crate::amd::ibs::IbsRefusal;
use crate::lifecycle::{Absent, InUse, Missing, NotBacked, NotStarted, StartError};
use pugmark_decoder_core::ibs::{Caps, Part};

const OLD: Caps = Caps(0x7);
const ZEN_2: Caps = Caps(0x3ff);
const ZEN_4: Caps = Caps(0xbff);
const ALL: Caps = Caps(0x1_fbff);

#[test]
fn what_the_units_cannot_do_is_refused() {
    let fetch = |period| IbsConfig::new().fetch(period);
    let op = |period| IbsConfig::new().op(period);
    let period = |period, most| Err(IbsRefusal::Period { period, least: 0x90, most });
    let fetch_period = |period| Err(IbsRefusal::Period { period, least: 0x10, most: 0xf_fff0 });
    let missing = |caps| Err(IbsRefusal::Missing(caps));
    let table = [
        (IbsConfig::new(), ALL, Err(IbsRefusal::Nothing)),
        // Periods: multiples of 16, of 20 or 27 bits.
        (fetch(16), OLD, Ok(())),
        (fetch(0), OLD, fetch_period(0)),
        (fetch(24), OLD, fetch_period(24)),
        (fetch(0xf_fff0), OLD, Ok(())),
        (fetch(0x10_0000), ALL, fetch_period(0x10_0000)),
        (op(0), OLD, period(0, 0xf_fff0)),
        // Counts of 1 to 8 are reserved.
        (op(0x80), OLD, period(0x80, 0xf_fff0)),
        (op(0x90), OLD, Ok(())),
        (op(0x1001), OLD, period(0x1001, 0xf_fff0)),
        (op(0x10_0000), OLD, period(0x10_0000, 0xf_fff0)),
        (op(0x10_0000), Caps(0x47), Ok(())),
        (op(0x7ff_fff0), ZEN_2, Ok(())),
        (op(0x800_0000), ZEN_2, period(0x800_0000, 0x7ff_fff0)),
        // Each capability.
        (fetch(16), Caps(0b101), missing(Caps::FETCH_SAM)),
        (op(0x100), Caps(0b011), missing(Caps::OP_SAM)),
        (op(0x100).op_counts_dispatched(), OLD, missing(Caps::OP_CNT)),
        (op(0x100).op_counts_dispatched(), Caps(0x17), Ok(())),
        (fetch(16).l3_miss_only(), ZEN_2, missing(Caps::ZEN4)),
        (op(0x100).l3_miss_only(), ZEN_2, missing(Caps::ZEN4)),
        (op(0x100).l3_miss_only(), ZEN_4, Ok(())),
        (op(0x100).op_latency(128), ZEN_4, missing(Caps::LD_LAT)),
        (op(0x100).op_latency(128), Caps(0x1bff), Ok(())),
        (fetch(16).fetch_latency(128), Caps(0x3bff), missing(Caps::FETCH_LAT)),
        (fetch(16).fetch_latency(128), Caps(0x5bff), missing(Caps::DIS)),
        (fetch(16).fetch_latency(128), Caps(0x7bff), Ok(())),
        (op(0x100).op_streaming_stores(), Caps(0xfbff), missing(Caps::STRM_ST_RMT_SOCKET)),
        (op(0x100).op_streaming_stores(), Caps(0x1_dbff), missing(Caps::DIS)),
        // Latencies.
        (op(0x100).op_latency(0), ALL, Err(IbsRefusal::Latency { cycles: 0, most: 2048 })),
        (op(0x100).op_latency(129), ALL, Err(IbsRefusal::Latency { cycles: 129, most: 2048 })),
        (op(0x100).op_latency(2048), ALL, Ok(())),
        (op(0x100).op_latency(2176), ALL, Err(IbsRefusal::Latency { cycles: 2176, most: 2048 })),
        (fetch(16).fetch_latency(2048), ALL, Err(IbsRefusal::Latency { cycles: 2048, most: 1920 })),
        (fetch(16).fetch_latency(1920), ALL, Ok(())),
        // Software randomizes periods if the processor does not.
        (op(0xf0).op_random(), OLD, Err(IbsRefusal::RandomPeriod { period: 0xf0 })),
        (op(0x100).op_random(), OLD, Ok(())),
        (op(0xf0).op_random(), ZEN_2, Ok(())),
    ];
    for (config, caps, verdict) in table {
        let part = Part { family: 0x1a, model: 0x50, caps };
        assert_eq!(config.check(&part), verdict, "{config:?}");
    }
}

#[test]
fn control_registers_are_the_manuals() {
    let fetch = IbsConfig::new().fetch(0x1_2340);
    let op = IbsConfig::new().op(0x1_2340);
    let (fetch_en, op_en) = (1 << 48, 1 << 17);
    // (configuration, register, its last write)
    let table = [
        (fetch, FETCH_CTL, fetch_en | 0x1234),
        (fetch.fetch_random(), FETCH_CTL, fetch_en | 0x1234 | 1 << 57),
        (fetch.l3_miss_only(), FETCH_CTL, fetch_en | 0x1234 | 1 << 59),
        (fetch, FETCH_CTL2, 0),
        (fetch.fetch_latency(384), FETCH_CTL2, 3 << 1),
        (fetch.kernel_only(), FETCH_CTL2, 1 << 6),
        (fetch.user_only(), FETCH_CTL2, 1 << 5),
        (op, OP_CTL, op_en | 0x1234),
        (IbsConfig::new().op(0x7a1_2340), OP_CTL, op_en | 0x1234 | 0x7a << 20),
        (op.op_counts_dispatched(), OP_CTL, op_en | 0x1234 | 1 << 19),
        (op.l3_miss_only(), OP_CTL, op_en | 0x1234 | 1 << 16),
        (op.op_latency(128), OP_CTL, op_en | 0x1234 | 1 << 63),
        (op.op_latency(2048), OP_CTL, op_en | 0x1234 | 1 << 63 | 15 << 59),
        (op.op_latency(128).l3_miss_only(), OP_CTL, op_en | 0x1234 | 1 << 63 | 1 << 16),
        (op.kernel_only(), OP_CTL2, 1 << 1),
        (op.user_only(), OP_CTL2, 1 << 2),
        (op.op_streaming_stores(), OP_CTL2, 1 << 3),
    ];
    for (config, register, value) in table {
        let (machine, _running) = start(fake::ZEN_6, config);
        let writes = machine.writes();
        let last = writes.iter().rfind(|(address, _)| *address == register);
        assert_eq!(last, Some(&(register, value)), "{config:?}");
        // A unit that was not requested is left alone.
        let others = if register == FETCH_CTL || register == FETCH_CTL2 { OP_CTL } else { FETCH_CTL };
        assert!(writes.iter().all(|(address, _)| *address != others));
    }
}

#[test]
fn a_latency_is_filtered_with_l3_misses_where_erratum_1606_needs_it() {
    let zen_5 = |model| Cpu { model, ibs: 0x8_1bff, ..fake::ZEN_6 };
    let l3_miss_only = 1 << 16;
    for (cpu, filtered) in [
        (zen_5(0x02), l3_miss_only),
        (zen_5(0x11), l3_miss_only),
        (zen_5(0x44), l3_miss_only),
        (zen_5(0x70), l3_miss_only),
        (fake::ZEN_6, 0),
    ] {
        for (config, expected) in
            [(IbsConfig::new().op(0x1000), 0), (IbsConfig::new().op(0x1000).op_latency(256), filtered)]
        {
            let (machine, _running) = start(cpu, config);
            assert_eq!(machine.get(OP_CTL) & l3_miss_only, expected, "{cpu:x?} {config:?}");
        }
    }
}

#[test]
fn a_unit_starts_with_a_rising_edge_and_its_disable_bit_is_the_last_to_go() {
    let both = IbsConfig::new().fetch(0x10).op(0x200);
    let (machine, _running) = start(fake::BARCELONA, both);
    assert_eq!(
        machine.writes(),
        [(FETCH_CTL, 0), (FETCH_CTL, 1 << 48 | 1), (OP_CTL, 0), (OP_CTL, 1 << 17 | 0x20)]
    );
    let (machine, _running) = start(fake::ZEN_6, both);
    assert_eq!(
        machine.writes(),
        [
            (FETCH_CTL2, 1),
            (FETCH_CTL, 0),
            (FETCH_CTL, 1 << 48 | 1),
            (FETCH_CTL2, 0),
            (OP_CTL2, 1),
            (OP_CTL, 0),
            (OP_CTL, 1 << 17 | 0x20),
            (OP_CTL2, 0)
        ]
    );
}

#[test]
fn detection_says_what_is_missing_and_who_samples() {
    let detect = |machine: &Machine| IbsUnit::detect(machine.cpuid(), machine.clone()).err();
    assert_eq!(detect(&Machine::new(fake::K8)), Some(Missing::Ibs.into()));
    let machine = Machine::new(fake::ZEN_2);
    assert_eq!(detect(&machine), None);
    assert_eq!(machine.get(OP_CTL), 0, "the probe leaves nothing");
    machine.kill();
    assert!(matches!(detect(&machine), Some(Absent::NotBacked(NotBacked { address: OP_CTL, .. }))));
    for (register, value) in [(FETCH_CTL, 1 << 48), (OP_CTL, 1 << 17)] {
        let machine = Machine::new(fake::ZEN_2);
        machine.set(register, value);
        assert!(matches!(detect(&machine), Some(Absent::InUse(InUse::Ibs { .. }))), "{register:#x}");
        assert_eq!(machine.writes(), []);
    }
    for access in 0..5 {
        let machine = Machine::new(fake::ZEN_2);
        machine.fault_in(access);
        assert!(matches!(detect(&machine), Some(Absent::Fault(_))), "access {access}");
    }
}

#[test]
fn nothing_starts_before_its_interrupt_is_routed() {
    let machine = Machine::new(fake::ZEN_2);
    let unit = IbsUnit::detect(machine.cpuid(), machine.clone()).unwrap();
    machine.writes();
    let failed = unit.start(&IbsConfig::new().op(0x1000)).err().unwrap();
    assert_eq!(failed.error(), StartError::Refused(IbsRefusal::NotRouted));
    let NotStarted::Off { unit, .. } = failed else { panic!("{failed}") };
    let failed = unit.start(&IbsConfig::new()).err().unwrap();
    assert_eq!(failed.error(), StartError::Refused(IbsRefusal::Nothing));
    assert_eq!(machine.writes(), []);
}

#[test]
fn of_two_units_the_second_is_refused_and_leaves_the_first_sampling() {
    let machine = Machine::new(fake::ZEN_2);
    let (one, other) = (unit(&machine), unit(&machine));
    let config = IbsConfig::new().op(0x1000);
    let _running = one.start(&config).map_err(|failed| failed.error()).unwrap();
    let op = machine.get(OP_CTL);
    let failed = other.start(&config).err().unwrap();
    assert!(matches!(failed.error(), StartError::InUse(InUse::Ibs { .. })), "{failed}");
    drop(failed);
    assert_eq!(machine.get(OP_CTL), op);
}
