//! Scenarios: one behaviour a file, with code, packets and flow.

use crate::{
    common::{notation::Scenario, scenarios, sections},
    libipt,
};
use pugmark_decoder_core::{
    flow::{InsnDecoder, Item},
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

fn decode(scenario: &Scenario, image: Image<'_>) -> Vec<String> {
    let mut decoder = InsnDecoder::with_config(&scenario.trace, image, scenario.config);
    let mut lines = vec![];
    while decoder.resync().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(Item::Insn(insn))) => {
                    lines.push(format!("{}{:x}", if insn.speculative { "? " } else { "" }, insn.ip));
                }
                Ok(Some(Item::Event(event))) => lines.push(format!("[{}]", event.text(true))),
                Ok(None) => {
                    if decoder.ip().is_some() {
                        lines.push("end".into());
                    }
                    return lines;
                }
                Err(error) => {
                    lines.push(format!("error {:x}: {}", error.offset, error.kind));
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
