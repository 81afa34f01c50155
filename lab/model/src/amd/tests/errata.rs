//! Errata: deviations of some processors from the manual.

use std::vec::Vec;

use super::machine::*;
use crate::Pmi;
use crate::amd::{AmdSettings, Errata};

/// Returns a zen4 with these errata and no others.
fn with(errata: Errata) -> AmdMachine {
    let settings = AmdSettings { skid: 0, errata: Some(errata), ..AmdSettings::default() };
    let mut machine = AmdMachine::with("zen4", settings);
    machine.ibs_by_nmi();
    machine
}

#[test]
fn profiles_have_the_errata_of_their_parts() {
    let all = [
        Errata::IBS_INTERRUPT_CANNOT_BE_CLEARED,
        Errata::IBS_STICKY_TLB_BITS,
        Errata::IBS_FETCH_STARTS_AT_MAXIMUM,
        Errata::IBS_FETCH_COUNT_BY_ENABLE_ALONE,
        Errata::IBS_FETCH_ADDRESS_ZERO,
        Errata::IBS_IC_MISS_WRONG,
        Errata::IBS_DATA_SOURCE_WRONG,
        Errata::IBS_FETCH_PAGE_SIZES,
        Errata::IBS_LATENCY_FILTER_LEAKS,
        Errata::LBR_ENTRIES_WITHOUT_BRANCH,
    ];
    let rows: [(&str, &[usize]); 8] = [
        ("k8", &[]),
        ("barcelona", &[0]),
        ("trinity", &[1, 2]),
        ("zen2", &[3]),
        ("zen3", &[4, 5, 6, 7]),
        ("zen4", &[]),
        ("zen5", &[8]),
        ("zen6", &[]),
    ];
    for (name, expected) in rows {
        let errata = crate::amd::AmdProfile::by_name(name).expect(name).errata;
        for (index, erratum) in all.into_iter().enumerate() {
            assert_eq!(errata.has(erratum), expected.contains(&index), "{name} {index}");
        }
    }
}

#[test]
fn erratum_420_raises_interrupts_until_a_maximum_of_zero_is_written() {
    let run = |writes: &[u64], errata| {
        let mut machine = with(errata);
        for &value in writes {
            machine.write(OP_CTL, value);
        }
        machine.loop_nops(200);
        assert_eq!(machine.read(OP_CTL) & OP_VAL, 0);
        (machine.interrupts().len(), machine.processor.needs_each_instruction())
    };
    let on = OP_EN | OPS | 0xfff;
    let erratum = Errata::IBS_INTERRUPT_CANNOT_BE_CLEARED;
    let rows: [(&[u64], usize); 6] = [
        // Stopped by the enable bit, with or without the maximum in the same write.
        (&[on, on & !OP_EN], 1),
        (&[on, 0], 1),
        // The maximum is cleared first.
        (&[on, OP_EN | OPS, 0], 0),
        // A second write stops the engine.
        (&[on, 0, 0], 0),
        (&[on, on & !OP_EN, on & !OP_EN], 1),
        // Sampling was never on.
        (&[0xfff, 0], 0),
    ];
    for (writes, interrupts) in rows {
        assert_eq!(run(writes, erratum), (interrupts, interrupts != 0), "{writes:x?}");
        assert_eq!(run(writes, Errata::NONE), (0, false), "{writes:x?}");
    }
    // Started again, it works normally.
    let mut machine = with(erratum);
    for value in [on, 0, on] {
        machine.write(OP_CTL, value);
    }
    machine.loop_nops(200);
    assert_eq!(machine.interrupts(), []);
}

#[test]
fn erratum_420_interrupts_once_in_64_instructions() {
    let settings = AmdSettings {
        errata: Some(Errata::IBS_INTERRUPT_CANNOT_BE_CLEARED),
        skid: 0,
        ..AmdSettings::default()
    };
    let mut machine = AmdMachine::with("zen4", settings);
    machine.ibs_by_nmi();
    machine.write(OP_CTL, OP_EN | OPS | 0xfff);
    // The write that stops sampling is the first counted instruction.
    machine.write(OP_CTL, 0xfff);
    let mut at = std::vec::Vec::new();
    for instruction in 2..=200 {
        machine.loop_nops(1);
        at.extend(machine.interrupts().iter().map(|_| instruction));
    }
    assert_eq!(at, [64, 128, 192]);
}

#[test]
fn erratum_718_keeps_bits_of_earlier_samples() {
    for (errata, kept) in [(Errata::IBS_STICKY_TLB_BITS, 1 << 3), (Errata::NONE, 0)] {
        for cleared in [false, true] {
            let mut machine = with(errata);
            for _ in 0..2 {
                machine.write(OP_CTL, OP_EN | OPS | 0x90 << 32 | 9);
                machine.with_rbx(LOAD, 0x1000);
                if cleared {
                    machine.write(OP_CTL, 0);
                    let data = machine.read(OP_DATA3);
                    machine.write(OP_DATA3, 0);
                    machine.write(OP_CTL, OP_EN | OPS | 0x90 << 32 | 9);
                    machine.with_rbx(LOAD, 0x1000);
                    assert!(data & 1 << 17 != 0);
                }
            }
            // The second load hits the translation buffers.
            let bits = 1 << 2 | 1 << 3 | 1 << 7;
            assert_eq!(machine.read(OP_DATA3) & bits, if cleared { 0 } else { kept }, "{cleared}");
        }
    }
}

#[test]
fn erratum_719_tags_the_next_fetch_unless_the_enable_bit_was_clear() {
    for (errata, at_once) in [(Errata::IBS_FETCH_STARTS_AT_MAXIMUM, true), (Errata::NONE, false)] {
        for (zeroed, at_once) in [(false, at_once), (true, false)] {
            let mut machine = with(errata);
            machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
            machine.next(NOP);
            assert!(machine.read(FETCH_CTL) & FETCH_VAL != 0);
            if zeroed {
                machine.write(FETCH_CTL, 0);
            }
            machine.write(FETCH_CTL, FETCH_EN | 5);
            machine.at.ip += 0x40;
            machine.next(NOP);
            assert_eq!(machine.read(FETCH_CTL) & FETCH_VAL != 0, at_once, "{zeroed}");
        }
    }
}

#[test]
fn erratum_719_needs_the_enable_bit_before_and_after_and_a_sample_that_is_cleared() {
    let count = |writes: [u64; 2]| {
        let mut machine = with(Errata::IBS_FETCH_STARTS_AT_MAXIMUM);
        writes.into_iter().for_each(|value| machine.write(FETCH_CTL, value));
        machine.read(FETCH_CTL) >> 16 & 0xffff
    };
    for (before, after, at_maximum) in [
        (FETCH_EN | FETCH_VAL, FETCH_EN, true),
        (FETCH_EN | FETCH_VAL, FETCH_EN | FETCH_VAL, false),
        (FETCH_EN, FETCH_EN, false),
        (FETCH_EN, FETCH_EN | FETCH_VAL, false),
        (FETCH_VAL, FETCH_EN, false),
        (FETCH_EN | FETCH_VAL, 0, false),
        (0, 0, false),
    ] {
        let expected = if at_maximum { 7 } else { 2 };
        assert_eq!(count([before | 7, after | 2 << 16 | 7]), expected, "{before:#x} {after:#x}");
    }
}

#[test]
fn the_fetch_count_of_family_17h_starts_anew_by_the_enable_bit_alone() {
    for (errata, restarts) in [(Errata::IBS_FETCH_COUNT_BY_ENABLE_ALONE, false), (Errata::NONE, true)] {
        for (edge, restarts) in [(false, restarts), (true, true)] {
            let mut machine = with(errata);
            machine.write(FETCH_CTL, FETCH_EN | 5 << 16 | 5);
            machine.next(NOP);
            if edge {
                machine.write(FETCH_CTL, 5);
            }
            machine.write(FETCH_CTL, FETCH_EN | 5);
            let count = machine.read(FETCH_CTL) >> 16 & 0xffff;
            assert_eq!(count, if restarts { 0 } else { 5 }, "{edge}");
        }
    }
}

#[test]
fn erratum_1197_leaves_some_fetches_without_an_address() {
    for (errata, zeros) in [(Errata::IBS_FETCH_ADDRESS_ZERO, 2), (Errata::NONE, 0)] {
        let mut machine = with(errata);
        let mut found = 0;
        for _ in 0..16 {
            machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
            machine.at.ip += 0x40;
            machine.next(NOP);
            found += u32::from(machine.read(FETCH_LIN) == 0);
        }
        assert_eq!(found, zeros);
    }
}

#[test]
fn erratum_1238_makes_instruction_cache_misses_up() {
    for (errata, wrong) in [(Errata::IBS_IC_MISS_WRONG, true), (Errata::NONE, false)] {
        let mut machine = with(errata);
        machine.next(NOP);
        let mut misses = 0;
        for _ in 0..64 {
            machine.at.ip = 0x40_0040;
            machine.next(NOP);
            machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
            machine.at.ip = 0x40_0000;
            machine.next(NOP);
            assert!(machine.read(FETCH_CTL) & FETCH_VAL != 0);
            misses += machine.read(FETCH_CTL) >> 51 & 1;
        }
        // About half of the 64 samples from this seed.
        assert_eq!((22..=42).contains(&misses), wrong, "{misses}");
    }
}

#[test]
fn erratum_1293_makes_the_source_of_a_prefetch_up() {
    const PREFETCH: &[u8] = &[0x0f, 0x18, 0x0b];
    for (errata, source) in [(Errata::IBS_DATA_SOURCE_WRONG, 212 & 7), (Errata::NONE, 3)] {
        let mut machine = with(errata);
        machine.write(OP_CTL, OP_EN | OPS | 0x90 << 32 | 9);
        machine.with_rbx(PREFETCH, 0x1000);
        assert_eq!(machine.read(OP_DATA2), source);
        machine.write(OP_CTL, OP_EN | OPS | 0x90 << 32 | 9);
        machine.with_rbx(LOAD, 0x9_2000);
        assert_eq!(machine.read(OP_DATA2), 3);
    }
}

#[test]
fn erratum_1347_has_a_size_of_16_kib_among_those_of_fetched_pages() {
    for (errata, sizes) in [(Errata::IBS_FETCH_PAGE_SIZES, [0, 2, 3]), (Errata::NONE, [0, 1, 2])] {
        for (at, size) in [0x40_0000, LARGE, HUGE].into_iter().zip(sizes) {
            let mut machine = with(errata);
            machine.write(FETCH_CTL, FETCH_EN | 1 << 16 | 1);
            machine.at.ip = at;
            machine.next(NOP);
            assert_eq!(machine.read(FETCH_CTL) >> 53 & 3, size, "{at:#x}");
        }
    }
}

#[test]
fn erratum_1606_lets_fast_loads_through_the_filter_unless_what_missed_the_l3_is_filtered_too() {
    const LATENCY: u64 = 1 << 63;
    const L3_MISS_ONLY: u64 = 1 << 16;
    for (erratum, leaks) in [(Errata::IBS_LATENCY_FILTER_LEAKS, true), (Errata::NONE, false)] {
        for (filter, fast, slow) in [(LATENCY, leaks, true), (LATENCY | L3_MISS_ONLY, false, true)] {
            for (known, reported) in [(true, fast), (false, slow)] {
                let settings = AmdSettings { skid: 0, errata: Some(erratum), ..AmdSettings::default() };
                let mut machine = AmdMachine::with("zen6", settings);
                if known {
                    machine.write(OP_CTL, OP_EN | OPS | 0x90 << 32 | 9);
                    machine.with_rbx(LOAD, 0x1000);
                }
                machine.write(OP_CTL, OP_EN | OPS | filter | 0x90 << 32 | 9);
                machine.with_rbx(LOAD, 0x1000);
                assert_eq!(machine.read(OP_CTL) & OP_VAL != 0, reported, "{filter:#x} {known}");
            }
        }
    }
}

#[test]
fn a_stray_interrupt_goes_through_the_entry_of_ibs() {
    let mut machine = with(Errata::IBS_INTERRUPT_CANNOT_BE_CLEARED);
    machine.write(OP_CTL, OP_EN | OPS | 0xfff);
    machine.write(OP_CTL, 0);
    machine.loop_nops(70);
    assert_eq!(machine.interrupts(), [Pmi::Nmi]);
}

#[test]
fn erratum_1452_puts_entries_without_a_branch_into_the_stack() {
    const FLAGS: u64 = 0b111 << 61;
    const VALID: u64 = 1 << 63;
    for (errata, expected) in
        [(Errata::LBR_ENTRIES_WITHOUT_BRANCH, [VALID, VALID, FLAGS, VALID]), (Errata::NONE, [VALID; 4])]
    {
        let mut machine = with(errata);
        machine.write(0xc000_010f, 1 << 6);
        machine.at.ip = 0x1000;
        (1..=10).for_each(|index| machine.go(JMP, 0x1000 + 0x100 * index));
        let newest = [0, 2, 4, 6].map(|at| machine.read(0xc001_0301 + at) & FLAGS);
        assert_eq!(newest, expected);
        let rest: Vec<_> = (0..16).map(|at| machine.read(0xc001_0301 + 2 * at)).collect();
        let branches = rest.iter().filter(|to| **to & FLAGS == VALID).count();
        assert_eq!(branches, 10, "no branch is lost before the stack is full");
    }
}
