//! Compares ptdump's output with the packets in the decoder's scenarios.

use crate::run::{Folder, Tool};
use notation::Scenario;
use std::{fs, path::Path};

#[allow(dead_code, reason = "code and flow are the decoder's own tests' concern")]
#[path = "../../../../decoder-core/tests/common/notation.rs"]
mod notation;

#[test]
fn ptdump_prints_the_packets_of_each_scenario() {
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../decoder-core/tests/scenarios");
    let mut count = 0;
    for entry in fs::read_dir(scenarios).unwrap() {
        let path = entry.unwrap().path();
        let scenario = Scenario::parse(&fs::read_to_string(&path).unwrap());
        let folder = Folder::new("scenario", &[("trace.pt", &scenario.trace)]);
        let mut args: Vec<_> = scenario.dump.options.iter().map(|option| &option[..]).collect();
        args.push("trace.pt");
        let lines: Vec<_> = folder.lines(Tool::Ptdump, &args).iter().map(|line| short(line)).collect();
        assert_eq!(lines, scenario.dump.lines, "{}", path.display());
        count += 1;
    }
    assert!(count > 100, "only {count} scenarios");
}

/// Returns a line with one blank between its words and with the offset's leading zeros removed.
fn short(line: &str) -> String {
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let offset = u64::from_str_radix(first, 16).ok().filter(|_| first.len() == 16);
    let first = offset.map_or_else(|| first.to_owned(), |offset| format!("{offset:x}"));
    [first].into_iter().chain(words.map(str::to_owned)).collect::<Vec<_>>().join(" ")
}
