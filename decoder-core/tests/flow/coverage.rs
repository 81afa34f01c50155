//! Each kind of packet, event and error and each erratum has a scenario.
//!
//! The kinds are read from the source, so a new one without a scenario fails this test.

use crate::common::{notation::Scenario, scenarios, sections};
use pugmark_decoder_core::{
    config::Config,
    errata::Errata,
    event::EventDecoder,
    flow::{FlowItem, InsnDecoder},
    image::Image,
    packet::Packets,
};
use std::{collections::BTreeSet, fmt::Debug};

#[test]
fn each_packet_has_a_scenario() {
    let mut seen = BTreeSet::new();
    for (_, scenario) in scenarios() {
        let mut packets = Packets::with_config(&scenario.trace, scenario.config);
        while packets.sync_forward().is_some() {
            while let Some(Ok((_, packet))) = packets.next() {
                seen.insert(variant(&packet));
            }
        }
    }
    check(include_str!("../../src/packet/mod.rs"), "pub enum Packet {", &seen);
}

#[test]
fn each_event_has_a_scenario() {
    let mut seen = BTreeSet::new();
    for (_, scenario) in scenarios() {
        let mut events = EventDecoder::with_config(&scenario.trace, scenario.config);
        while events.sync_forward().is_some() {
            while let Ok(Some(event)) = events.next() {
                seen.insert(variant(&event.kind));
            }
        }
        let sections = sections(&scenario);
        let mut insns = InsnDecoder::with_config(&scenario.trace, Image::new(&sections), scenario.config);
        while insns.resync().is_some() {
            while let Ok(Some(item)) = insns.next() {
                if let FlowItem::Event(event) = item {
                    seen.insert(variant(&event.kind));
                }
            }
        }
    }
    check(include_str!("../../src/event/mod.rs"), "pub enum EventKind {", &seen);
}

#[test]
fn each_error_has_a_scenario_that_goes_on_after_it() {
    let mut seen = BTreeSet::new();
    for (name, scenario) in scenarios() {
        let sections = sections(&scenario);
        let mut insns = InsnDecoder::with_config(&scenario.trace, Image::new(&sections), scenario.config);
        // The error of a call before any synchronisation.
        seen.insert(variant(&insns.next().unwrap_err().kind));
        while insns.resync().is_some() {
            loop {
                match insns.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        assert!(!scenario.recovered.is_empty(), "{name} does not say where it goes on");
                        seen.insert(variant(&error.kind));
                        break;
                    }
                }
            }
        }
    }
    // Errors of traces that come in slices: see `tests/resume`.
    seen.extend(["EndOfSlice", "LooksTooFar"].map(str::to_owned));
    // The error of images that read as code everywhere: see `endless`.
    seen.insert("EndlessCode".to_owned());
    // Errors of records and samples, which are no packets: see the tests of `bts`, `pebs` and `ibs`.
    let of_records = ["EmptyRecords", "OtherSample", "UnreachableBranch", "ImpossibleBranch", "RecordSize"];
    seen.extend(of_records.map(str::to_owned));
    let of_values =
        ["Truncated", "TooWide", "UnknownGroups", "RepeatedGroups", "LastBranchCount", "SampleSize"];
    seen.extend(of_values.map(str::to_owned));
    // Errors of samples in a trace, which this flow skips: see the tests of `pebs::blocks`.
    seen.extend(["UnknownBlock", "UnknownBlockItem", "RepeatedBlockItem"].map(str::to_owned));
    check(include_str!("../../src/error.rs"), "pub enum ErrorKind {", &seen);
}

#[test]
fn each_erratum_has_a_scenario_that_needs_it() {
    let mut seen = BTreeSet::new();
    for (name, scenario) in scenarios() {
        if scenario.config.errata == Errata::NONE {
            continue;
        }
        let sound = Config { errata: Errata::NONE, ..scenario.config };
        assert_ne!(items(&scenario, scenario.config), items(&scenario, sound), "{name}");
        // "Errata { bdm64: true, ... }"
        let flags = format!("{:?}", scenario.config.errata);
        let flags = flags.split([' ', ',']).collect::<Vec<_>>();
        let set = flags.windows(2).filter(|words| words[1] == "true").map(|words| words[0]);
        seen.extend(set.map(|flag| flag.trim_end_matches(':').to_owned()));
    }
    let all = format!("{:?}", Errata::NONE);
    let all: Vec<_> = all.split([' ', '{', '}', ',']).filter_map(|word| word.strip_suffix(':')).collect();
    assert_eq!(all.len(), 10);
    for erratum in all {
        assert!(seen.contains(erratum), "no scenario of {erratum}");
    }
}

/// Returns the items of the instruction flow, up to an error.
fn items(scenario: &Scenario, config: Config<'_>) -> String {
    let sections = sections(scenario);
    let mut insns = InsnDecoder::with_config(&scenario.trace, Image::new(&sections), config);
    let mut items = String::new();
    while insns.sync_forward().is_some() {
        while let Ok(Some(item)) = insns.next() {
            items += &format!("{item:?}\n");
        }
    }
    items
}

/// Returns the name of an enum's variant.
fn variant(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// Checks that each variant of the enum that begins in `source` with this line was seen.
fn check(source: &str, head: &str, seen: &BTreeSet<String>) {
    let body = source.split_once(head).expect(head).1;
    let lines = body.lines().take_while(|line| *line != "}");
    // Variants are indented once; their fields twice, and comments do not begin with a capital.
    let names = lines
        .filter_map(|line| line.strip_prefix("    ").filter(|line| line.starts_with(char::is_uppercase)));
    let names: Vec<_> = names.map(|line| line.split(['(', ' ', ',']).next().unwrap()).collect();
    assert!(names.len() > 15, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !seen.contains(**name)).collect();
    assert!(missing.is_empty(), "no scenario of {missing:?}");
}
