//! Helpers of several tests: scenarios, traces of real processors with their code, and traces that repeat themselves.

#![allow(dead_code, reason = "no test needs all of it")]

pub(crate) mod loops;
pub(crate) mod notation;
pub(crate) mod recorded;

use notation::Scenario;
use pugmark_decoder_core::image::{AddressSpace, Section};
use std::{fs, path::Path};

/// Returns all scenarios by name, in order.
pub(crate) fn scenarios() -> Vec<(String, Scenario)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let scenario = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, Scenario::parse(&fs::read_to_string(path).unwrap()))
    };
    paths.iter().map(scenario).collect()
}

/// Returns the image of a scenario.
pub(crate) fn sections(scenario: &Scenario) -> Vec<Section<'_>> {
    let sections = scenario.code.iter();
    sections.map(|code| Section { base: code.base, bytes: &code.bytes, space: code.space }).collect()
}

/// Returns sections in all address spaces.
pub(crate) fn everywhere(code: &[(u64, Vec<u8>)]) -> Vec<Section<'_>> {
    code.iter().map(|(base, bytes)| Section { base: *base, bytes, space: AddressSpace::Any }).collect()
}
