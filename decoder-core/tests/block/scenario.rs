//! The scenarios of the instruction flow, whole, cut and damaged.

use crate::{compare::compare, notation::Scenario};
use pugmark_decoder_core::{
    config::{Config, Flags},
    errata::Errata,
    image::{AddressSpace, Image, Section},
};
use std::{fs, path::Path};

const DAMAGED: usize = 10_000;

fn all() -> Vec<(String, Scenario)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let scenario = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, Scenario::parse(&fs::read_to_string(path).unwrap()))
    };
    paths.iter().map(scenario).collect()
}

fn sections(scenario: &Scenario) -> Vec<Section<'_>> {
    let space = |cr3: Option<u64>| cr3.map_or(AddressSpace::Any, AddressSpace::Cr3);
    let sections = scenario.code.iter();
    sections.map(|code| Section { base: code.base, bytes: &code.bytes, space: space(code.cr3) }).collect()
}

#[test]
fn scenarios_and_every_cut_of_them() {
    for (name, scenario) in all() {
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
fn damaged_scenarios() {
    let all = all();
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
