//! The scenarios of the instruction flow, whole, cut and damaged.

use crate::{
    common::{scenarios, sections},
    compare::compare,
};
use pugmark_decoder_core::{
    config::{Clocks, Config, Flags},
    errata::Errata,
    image::{AddressSpace, CodeReader, Image, Section},
};

/// 1000: jz 1002; 1002: jmp rax
const BRANCHES: [u8; 4] = [0x74, 0x00, 0xff, 0xe0];

/// PSB+ at 1000, TNT, TIP 1000, MTC 40, TNT, MTC 1, TIP 1000, TNT, padding.
const TIMED: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
    \x06\x2d\0\x10\x59\x40\x06\x59\x01\x2d\0\x10\x06\0\0\0\0\0\0\0\0";

const DAMAGED: usize = 10_000;

#[test]
fn scenarios_and_every_cut_of_them() {
    for (name, scenario) in scenarios() {
        let sections = sections(&scenario);
        for end in 0..=scenario.trace.len() {
            let trace = &scenario.trace[..end];
            if let Err(what) = compare(trace, Image::new(&sections), scenario.config) {
                panic!("{name} cut at {end:#x}: {what}");
            }
        }
    }
}

#[test]
fn scenarios_with_code_from_a_reader() {
    for (name, scenario) in scenarios() {
        let sections = sections(&scenario);
        // At most the first section is in memory. The reader has all of them.
        let read = |out: &mut [u8], ip, space| Image::new(&sections).read(ip, space, out);
        for in_memory in [0, 1] {
            let image =
                Image::new(&sections[..in_memory.min(sections.len())]).with_reader(CodeReader::new(&read));
            if let Err(what) = compare(&scenario.trace, image, scenario.config) {
                panic!("{name}: {what}");
            }
        }
    }
}

#[test]
fn a_timing_packet_that_cannot_be_is_an_error_in_front_of_a_branch() {
    let sections = [Section { base: 0x1000, bytes: &BRANCHES, space: AddressSpace::Any }];
    // With an MTCFreq that no processor has, the distance between two MTCs can be impossible.
    for (mtc_freq, errors) in [(3, 0), (57, 1)] {
        let clocks = Clocks { mtc_freq, ..Clocks::UNKNOWN };
        let sum = compare(TIMED, Image::new(&sections), Config { clocks, ..Config::new() }).unwrap();
        assert_eq!(sum.errors, errors, "{mtc_freq}");
    }
}

#[test]
fn damaged_scenarios() {
    let all = scenarios();
    let images: Vec<_> = all.iter().map(|(_, scenario)| sections(scenario)).collect();
    let mut random = fastrand::Rng::with_seed(0x626c_6f63_6b00);
    let mut errors = 0;
    for _ in 0..DAMAGED {
        let which = random.usize(..all.len());
        let (name, scenario) = &all[which];
        let mut trace = scenario.trace.clone();
        for _ in 0..random.usize(1..4) {
            if trace.is_empty() {
                break;
            }
            let at = random.usize(..trace.len());
            match random.u8(..5) {
                0 => trace[at] ^= 1 << random.u8(..8),
                // Any short TNT.
                1 => trace.insert(at, random.u8(2..128) << 1),
                2 => trace.truncate(at),
                3 => {
                    trace.remove(at);
                }
                _ => {
                    let other = &all[random.usize(..all.len())].1.trace;
                    let from = random.usize(..other.len());
                    let to = random.usize(from..=other.len());
                    trace.splice(at..at, other[from..to].iter().copied());
                }
            }
        }
        trace.extend(&scenario.trace);
        let flags = Flags { ticks: random.bool(), statuses: random.bool(), ..scenario.config.flags };
        let errata = scenario.config.errata;
        let errata =
            if random.bool() { errata } else { Errata { bdm64: true, skd022: true, skl014: true, ..errata } };
        match compare(&trace, Image::new(&images[which]), Config { flags, errata, ..scenario.config }) {
            Ok(sum) => errors += sum.errors,
            Err(what) => panic!("{name}, {trace:02x?}: {what}"),
        }
    }
    assert!(errors > DAMAGED as u64 / 4, "the damage does none: {errors}");
}
