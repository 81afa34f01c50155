//! The scenarios of the instruction flow, whole, cut and damaged.

use crate::{
    common::{scenarios, sections},
    compare::compare,
};
use pugmark_decoder_core::{
    config::{Config, Flags},
    errata::Errata,
    image::{CodeReader, Image},
};

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
        // The first is in memory, and all are to be had.
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
