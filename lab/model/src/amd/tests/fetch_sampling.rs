//! Fetch sampling.

use super::machine::*;
use crate::amd::AmdSettings;
use crate::{DeliveryKind, Pmi};

/// Executes instructions of one fetch each, at addresses in one page, cached after the first iteration.
fn fetch(machine: &mut AmdMachine, times: usize) {
    for _ in 0..times {
        machine.at.ip = 0x40_0000 + ((machine.at.ip + 0x40) & 0xc0);
        machine.next(NOP);
    }
}

fn count_field(machine: &AmdMachine) -> u64 {
    machine.read(FETCH_CTL) >> 16 & 0xffff
}

#[test]
fn a_fetch_has_the_size_of_its_page() {
    for (name, sizes) in
        [("barcelona", [0, 1, 2]), ("zen4", [0, 1, 2]), ("zen5", [0, 1, 2]), ("zen3", [0, 2, 3])]
    {
        for (at, size) in [0x40_0000, LARGE, HUGE].into_iter().zip(sizes) {
            let mut machine = AmdMachine::new(name);
            machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
            machine.at.ip = at;
            machine.next(NOP);
            assert_eq!(machine.read(FETCH_CTL) >> 53 & 3, size, "{name} {at:#x}");
        }
    }
}

#[test]
fn tags_the_fetch_that_the_maximum_count_names() {
    for name in ["barcelona", "trinity", "zen2", "zen3", "zen4", "zen5"] {
        let mut machine = AmdMachine::new(name);
        machine.ibs_by_nmi();
        machine.write(FETCH_CTL, FETCH_EN | 2);
        fetch(&mut machine, 32);
        assert_eq!(machine.read(FETCH_CTL) & FETCH_VAL, 0, "{name}");
        assert_eq!(machine.interrupts(), [], "{name}");
        machine.at.ip = 0x41_2345;
        machine.next(NOP);
        assert_eq!(
            machine.read(FETCH_CTL) & (FETCH_VAL | FETCH_EN | 0xffff),
            FETCH_VAL | FETCH_EN | 2,
            "{name}"
        );
        assert_eq!(machine.read(FETCH_LIN), 0x41_2345, "{name}");
        assert_eq!(machine.read(FETCH_PHYS), 0x4041_2345, "{name}");
        assert_eq!(machine.interrupts(), [Pmi::Nmi], "{name}");
        // The sample remains until software clears it.
        fetch(&mut machine, 100);
        assert_eq!(machine.read(FETCH_LIN), 0x41_2345, "{name}");
        assert_eq!(machine.interrupts(), [], "{name}");
    }
}

#[test]
fn the_count_field_is_where_counting_is_and_where_it_begins() {
    let mut machine = AmdMachine::new("zen4");
    machine.write(FETCH_CTL, FETCH_EN | 7 << 16 | 8);
    assert_eq!(count_field(&machine), 7);
    fetch(&mut machine, 15);
    assert_eq!((count_field(&machine), machine.read(FETCH_CTL) & FETCH_VAL), (7, 0));
    fetch(&mut machine, 1);
    assert_eq!((count_field(&machine), machine.read(FETCH_CTL) & FETCH_VAL), (8, 0));
    fetch(&mut machine, 1);
    assert_eq!((count_field(&machine), machine.read(FETCH_CTL) & FETCH_VAL), (8, FETCH_VAL));
}

#[test]
fn counts_only_while_enabled_and_not_valid() {
    for control in [2, FETCH_EN | FETCH_VAL | 2] {
        let mut machine = AmdMachine::new("zen4");
        machine.write(FETCH_CTL, control);
        fetch(&mut machine, 20);
        assert_eq!(count_field(&machine), 0, "{control:#x}");
        assert_eq!(machine.processor.is_on(), control & FETCH_EN != 0);
    }
}

#[test]
fn a_maximum_of_zero_tags_nothing() {
    let mut machine = AmdMachine::new("zen4");
    machine.write(FETCH_CTL, FETCH_EN);
    fetch(&mut machine, 40);
    assert_eq!((count_field(&machine), machine.read(FETCH_CTL) & FETCH_VAL), (2, 0));
}

#[test]
fn a_count_beyond_the_maximum_has_to_wrap() {
    let mut machine = AmdMachine::new("zen4");
    machine.write(FETCH_CTL, FETCH_EN | 0xffff << 16 | 1);
    assert_eq!(machine.processor.violations().counts_beyond_maximum, 1);
    fetch(&mut machine, 16 + 16);
    assert_eq!(machine.read(FETCH_CTL) & FETCH_VAL, 0);
    fetch(&mut machine, 1);
    assert_eq!(machine.read(FETCH_CTL) & FETCH_VAL, FETCH_VAL);
}

#[test]
fn random_starts_shorten_the_period_by_up_to_fifteen() {
    let mut seen = [0; 16];
    let mut machine = AmdMachine::new("zen4");
    for _ in 0..400 {
        machine.write(FETCH_CTL, FETCH_EN | RAND_EN | 1);
        let mut fetches = 0;
        while machine.read(FETCH_CTL) & FETCH_VAL == 0 {
            fetch(&mut machine, 1);
            fetches += 1;
            assert!(fetches < 18, "none is sampled");
        }
        seen[fetches - 2] += 1;
    }
    assert!(seen.iter().all(|times| *times > 5), "{seen:?}");
}

#[test]
fn without_random_starts_periods_are_all_the_same() {
    let mut machine = AmdMachine::new("zen4");
    for _ in 0..20 {
        machine.write(FETCH_CTL, FETCH_EN | 1);
        fetch(&mut machine, 16);
        assert_eq!(machine.read(FETCH_CTL) & FETCH_VAL, 0);
        fetch(&mut machine, 1);
        assert_eq!(machine.read(FETCH_CTL) & FETCH_VAL, FETCH_VAL);
    }
}

/// Returns the sample of a fetch at `address`, after fetches from the addresses in `known`.
fn sample(name: &str, known: &[u64], address: u64) -> u64 {
    let mut machine = AmdMachine::new(name);
    machine.write(FETCH_CTL, FETCH_EN | 0xffff);
    for &ip in known {
        machine.at.ip = ip;
        machine.next(NOP);
    }
    machine.write(FETCH_CTL, 0);
    machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
    machine.at.ip = address;
    machine.next(NOP);
    assert_eq!(machine.read(FETCH_CTL) & FETCH_VAL, FETCH_VAL);
    machine.read(FETCH_CTL)
}

#[test]
fn a_sample_tells_what_the_fetch_missed_and_how_long_it_took() {
    const COMP: u64 = 1 << 50;
    const IC_MISS: u64 = 1 << 51;
    const PHYS: u64 = 1 << 52;
    const L1_TLB: u64 = 1 << 55;
    const L2_TLB: u64 = 1 << 56;
    const L2: u64 = 1 << 58;
    const OC: u64 = 1 << 60;
    const L3: u64 = 1 << 61;
    let lat = |cycles: u64| cycles << 32;
    let base = FETCH_EN | FETCH_VAL | COMP | PHYS | 1 << 16 | 1;
    // Profile, the addresses fetched before 70_0000h, the sample of 70_0000h.
    let rows: [(&str, &[u64], u64); 9] = [
        ("zen2", &[], base | IC_MISS | L1_TLB | L2_TLB | L2 | lat(1 + 35 + 180)),
        ("zen4", &[], base | IC_MISS | L1_TLB | L2_TLB | L2 | OC | L3 | lat(1 + 35 + 180)),
        ("barcelona", &[], base | IC_MISS | L1_TLB | L2_TLB | lat(1 + 35 + 180)),
        // In the caches.
        ("zen4", &[0x70_0000, 0x70_0040], base | OC | lat(1)),
        // In level 2, because its level-1 slot was replaced.
        ("zen4", &[0x70_0000, 0x70_2000], base | OC | IC_MISS | lat(1 + 12)),
        // In level 3.
        ("zen4", &[0x70_0000, 0x70_8000], base | OC | IC_MISS | L2 | lat(1 + 40)),
        ("zen2", &[0x70_0000, 0x70_8000], base | IC_MISS | L2 | lat(1 + 40)),
        // The translation is only in level 2, because its level-1 slot was replaced; so were the line's slots.
        ("zen4", &[0x70_0000, 0x71_0000], base | OC | IC_MISS | L1_TLB | L2 | L3 | lat(1 + 7 + 180)),
        ("trinity", &[0x70_0000, 0x70_8000], base | IC_MISS | lat(1 + 180)),
    ];
    for (name, known, expected) in rows {
        assert_eq!(
            sample(name, known, 0x70_0000),
            expected,
            "{name} {known:x?}: {:#x}",
            sample(name, known, 0x70_0000)
        );
    }
    // Without a translation there is no physical address.
    assert_eq!(sample("zen4", &[], 0xffff_f000) & PHYS, 0);
}

#[test]
fn a_sample_replaces_what_software_left_of_the_last_one() {
    let mut machine = AmdMachine::new("zen4");
    fetch(&mut machine, 4);
    let stale = 0xffff << 32 | 1 << 51 | 1 << 55 | 1 << 61;
    machine.write(FETCH_CTL, FETCH_EN | stale | 1 << 16 | 1);
    fetch(&mut machine, 1);
    assert_eq!(machine.read(FETCH_CTL) & (FETCH_VAL | stale), FETCH_VAL | 1 << 32);
}

#[test]
fn the_extended_register_has_the_refill_latency() {
    let mut machine = AmdMachine::new("zen2");
    machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
    machine.next(NOP);
    assert_eq!(machine.read(0xc001_103c), 35);
}

#[test]
fn an_interrupt_aborts_the_next_fetch() {
    let mut machine = AmdMachine::new("zen4");
    machine.ibs_by_nmi();
    machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
    machine.deliver(DeliveryKind::Interrupt);
    assert_eq!(machine.read(FETCH_CTL) & (FETCH_VAL | 1 << 50 | 1 << 52), FETCH_VAL);
    // No instruction retires at the delivery, so the interrupt arrives after the next instruction.
    machine.next(NOP);
    assert_eq!(machine.interrupts(), [Pmi::Nmi]);
}

#[test]
fn the_filter_leaves_out_what_level_3_has() {
    const L3_MISS_ONLY: u64 = 1 << 59;
    let mut machine = AmdMachine::with("zen4", AmdSettings { skid: 0, seed: 3, ..AmdSettings::default() });
    machine.ibs_by_nmi();
    fetch(&mut machine, 4);
    machine.write(FETCH_CTL, FETCH_EN | L3_MISS_ONLY | 1);
    fetch(&mut machine, 16 + 1);
    // The count restarted at 0.
    assert_eq!((machine.read(FETCH_CTL) & FETCH_VAL, count_field(&machine)), (0, 0));
    fetch(&mut machine, 16);
    assert_eq!((machine.read(FETCH_CTL) & FETCH_VAL, count_field(&machine)), (0, 1));
    machine.at.ip = 0x60_0000;
    machine.next(NOP);
    assert_eq!(machine.read(FETCH_CTL) >> 61 & 1, 1);
    assert_eq!(machine.interrupts(), [Pmi::Nmi]);
    // With random starts it restarts at up to 127.
    machine.write(FETCH_CTL, FETCH_EN | L3_MISS_ONLY | RAND_EN | 0x10);
    let mut beginnings = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let mut last = count_field(&machine);
        while count_field(&machine) >= last {
            last = count_field(&machine);
            fetch(&mut machine, 1);
        }
        beginnings.insert(count_field(&machine));
    }
    assert_eq!(beginnings.into_iter().collect::<std::vec::Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_count_is_beyond_the_maximum_only_while_it_counts() {
    for (control, beyond) in [
        (FETCH_EN | 5 << 16 | 4, 1),
        (FETCH_EN | 5 << 16 | 5, 0),
        (FETCH_EN | 5 << 16 | 6, 0),
        (5 << 16 | 4, 0),
        (FETCH_EN | FETCH_VAL | 5 << 16 | 4, 0),
    ] {
        let mut machine = AmdMachine::new("zen4");
        machine.write(FETCH_CTL, control);
        assert_eq!(machine.processor.violations().counts_beyond_maximum, beyond, "{control:#x}");
    }
}

#[test]
fn a_write_of_its_registers_is_not_sampled_and_every_other_write_is() {
    // The next fetch is tagged, and so is the next op.
    const NEXT_FETCH: u64 = FETCH_EN | 1 << 16 | 1;
    const NEXT_OP: u64 = OP_EN | OPS | 0x90 << 32 | 9;
    /// Executes a WRMSR that needs its own fetch.
    fn write(machine: &mut AmdMachine, msr: u32, value: u64) {
        machine.at.ip += 0x40;
        machine.write(msr, value);
    }
    for (control, on, next, valid, control2) in [
        (FETCH_CTL, FETCH_EN | 1, NEXT_FETCH, FETCH_VAL, 0xc001_103f),
        (OP_CTL, OP_EN | OPS | 9, NEXT_OP, OP_VAL, 0xc001_103e),
    ] {
        // The unit was off, or on, before.
        for before in [None, Some(on)] {
            let mut machine = AmdMachine::new("zen6");
            before.into_iter().for_each(|before| write(&mut machine, control, before));
            write(&mut machine, control, next);
            assert_eq!(machine.read(control) & valid, 0, "{next:#x} after {before:x?}");
            // The unit's second control register, then PerfEvtSel0.
            write(&mut machine, control2, 0);
            assert_eq!(machine.read(control) & valid, 0, "{next:#x} after {before:x?}");
            write(&mut machine, 0xc001_0000, 0);
            assert_eq!(machine.read(control) & valid, valid, "{next:#x} after {before:x?}");
        }
    }
}
