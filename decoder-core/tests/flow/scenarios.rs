//! Scenarios: each file has one behaviour, with code, packets and flow.

use crate::{
    common::{notation::Scenario, scenarios, sections},
    event_text::event_text,
    libipt,
};
use pugmark_decoder_core::{
    ErrorKind,
    flow::{FlowItem, InsnDecoder, Recovered},
    image::{AddressSpace, CodeReader, Image},
};
use std::fmt::Write;

#[test]
fn each_scenario_has_its_flow() {
    let mut failed = String::new();
    let mut count = 0;
    for (name, scenario) in scenarios() {
        count += 1;
        let flow = decode(&scenario, Image::new(&sections(&scenario)));
        if flow != scenario.flow {
            let (expected, got) = (scenario.flow.join("\n  "), flow.join("\n  "));
            writeln!(failed, "{name}: expected\n  {expected}\ngot\n  {got}\n").unwrap();
        }
    }
    assert!(count > 60, "only {count} scenarios");
    assert!(failed.is_empty(), "{failed}");
}

#[test]
fn libipt_walks_each_scenario_in_the_same_way() {
    let mut failed = String::new();
    let mut compared = 0;
    for (name, scenario) in scenarios() {
        let code: Vec<_> = scenario.code.iter().map(|code| (code.base, &code.bytes[..])).collect();
        if scenario.libipt_differs || scenario.code.iter().any(|code| code.space != AddressSpace::Any) {
            continue;
        }
        let Some(other) = libipt::decode(&scenario.trace, &code) else {
            println!("skipped: libipt is not installed");
            return;
        };
        compared += 1;
        let own: Vec<_> = decode(&scenario, Image::new(&sections(&scenario)))
            .iter()
            .filter_map(|line| address(line))
            .collect();
        if own != other.addresses {
            writeln!(failed, "{name}:\n own    {own:x?}\n libipt {:x?} {:x?}", other.addresses, other.errors)
                .unwrap();
        }
    }
    println!("{compared} scenarios compared");
    assert!(compared >= 70, "only {compared} scenarios compared");
    assert!(failed.is_empty(), "{failed}");
}

#[test]
fn code_that_is_read_when_it_is_asked_for_gives_the_same_flow() {
    for (name, scenario) in scenarios() {
        let sections = sections(&scenario);
        let read = |out: &mut [u8], ip, space| Image::new(&sections).read(ip, space, out);
        let image = Image::new(&[]).with_reader(CodeReader::new(&read));
        assert_eq!(decode(&scenario, image), scenario.flow, "{name}");
    }
}

#[test]
fn after_an_error_it_goes_on_at_the_next_event_that_says_where() {
    let mut failed = String::new();
    for (name, scenario) in scenarios().iter().filter(|(_, scenario)| !scenario.recovered.is_empty()) {
        let flow = recovered(scenario, Image::new(&sections(scenario)));
        if flow != scenario.recovered {
            let (expected, got) = (scenario.recovered.join("\n  "), flow.join("\n  "));
            writeln!(failed, "{name}: expected\n  {expected}\ngot\n  {got}\n").unwrap();
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

fn recovered(scenario: &Scenario, image: Image<'_>) -> Vec<String> {
    let mut decoder = InsnDecoder::with_config(&scenario.trace, image, scenario.config);
    let mut lines = vec![];
    while decoder.sync_forward().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(item)) => lines.push(line(scenario, &item)),
                Ok(None) => {
                    lines.extend(decoder.ip().map(|_| "end".into()));
                    return lines;
                }
                Err(error) => {
                    lines.push(format!("error {:x}: {}", error.offset, error.kind));
                    if !search(scenario, &mut decoder, &mut lines) {
                        break;
                    }
                }
            }
        }
    }
    lines
}

/// Looks for a place to continue; returns true if there is one.
fn search(scenario: &Scenario, decoder: &mut InsnDecoder<'_>, lines: &mut Vec<String>) -> bool {
    loop {
        match decoder.recover() {
            Ok(Recovered::Place) => {
                lines.push(decoder.ip().map_or_else(|| "off".into(), |ip| format!("at {ip:x}")));
                return true;
            }
            Ok(Recovered::Event(event)) => lines.push(line(scenario, &FlowItem::Event(event))),
            Ok(Recovered::End) | Err(_) => {
                lines.push("lost".into());
                return false;
            }
        }
    }
}

fn line(scenario: &Scenario, item: &FlowItem) -> String {
    match item {
        FlowItem::Insn(insn) => format!("{}{:x}", if insn.speculative { "? " } else { "" }, insn.ip),
        FlowItem::Event(event) if scenario.times => {
            format!("[{:x} {}]", event.when.tsc.unwrap_or_default(), event_text(event, true))
        }
        FlowItem::Event(event) => format!("[{}]", event_text(event, true)),
    }
}

fn decode(scenario: &Scenario, image: Image<'_>) -> Vec<String> {
    let mut decoder = InsnDecoder::with_config(&scenario.trace, image, scenario.config);
    let mut lines = vec![];
    while decoder.resync().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(item)) => lines.push(line(scenario, &item)),
                Ok(None) => {
                    if decoder.ip().is_some() {
                        lines.push("end".into());
                    }
                    return lines;
                }
                Err(error) => {
                    lines.push(format!("error {:x}: {}", error.offset, error.kind));
                    assert_eq!(decoder.next().map_err(|error| error.kind), Err(ErrorKind::OutOfSync));
                    break;
                }
            }
        }
    }
    lines
}

fn address(line: &str) -> Option<u64> {
    u64::from_str_radix(line.trim_start_matches("? "), 16).ok()
}
