//! `pugmark pmc info`: prints the unit masks and modifiers of an event.

use super::names::{self, SimilarNames};
use anyhow::{Result, bail};
use clap::Args;
use pugmark_pfm::{Cpu, Event, Modifier, Pmu, UnitMask};
use serde_json::{Value, json};
use std::io::{self, Write};

/// The options of `pugmark pmc info`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark pmc info zen4::RETIRED_INSTRUCTIONS")]
pub(super) struct InfoOptions {
    /// PMU::EVENT or PROCESSOR::EVENT; EVENT alone for all PMUs that have it
    event: String,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// An event, and the PMUs that share it.
struct SharedEvent {
    pmus: Vec<&'static str>,
    event: &'static Event,
    masks: Vec<&'static UnitMask>,
    /// Empty for a processor of libpfm3, which has no modifiers.
    modifiers: &'static [Modifier],
}

pub(super) fn run(options: &InfoOptions) -> Result<()> {
    let blocks = blocks(&options.event)?;
    let mut to = io::stdout().lock();
    for (index, block) in blocks.iter().enumerate() {
        if options.json {
            writeln!(to, "{}", json(block))?;
        } else {
            write!(to, "{}{}", if index > 0 { "\n" } else { "" }, text(block))?;
        }
    }
    Ok(())
}

fn blocks(request: &str) -> Result<Vec<SharedEvent>> {
    let (found, name): (Vec<SharedEvent>, _) = match request.split_once("::") {
        None => (Pmu::all().iter().filter_map(|pmu| of_pmu(pmu, request)).collect(), request),
        Some((of, name)) => match (Pmu::by_name(of), Cpu::by_name(of), names::pmu(of)) {
            (Some(pmu), ..) | (None, None, Some(pmu)) => (of_pmu(pmu, name).into_iter().collect(), name),
            (None, Some(cpu), _) => (of_cpu(cpu, name).into_iter().collect(), name),
            (None, None, None) => {
                bail!(
                    "NOTFOUND: no PMU and no processor is called {of:?}{}",
                    SimilarNames::to(of, names::all())
                )
            }
        },
    };
    let mut blocks: Vec<SharedEvent> = Vec::new();
    for block in found {
        match blocks.iter_mut().find(|other| other.looks_like(&block)) {
            Some(other) => other.pmus.extend(block.pmus),
            None => blocks.push(block),
        }
    }
    if blocks.is_empty() {
        bail!("NOTFOUND: no event is called {name:?}{}", near(request, name));
    }
    Ok(blocks)
}

/// Returns names of events similar to an unknown name, from the PMU or processor in the request, or from all.
fn near(request: &str, name: &str) -> SimilarNames {
    let of = request.split_once("::").map(|(of, _)| of);
    let cpu = of.and_then(Cpu::by_name).filter(|cpu| Pmu::by_name(cpu.name()).is_none());
    let pmus = Pmu::all()
        .iter()
        .filter(|pmu| of.is_none_or(|of| names::pmu(of).is_some_and(|found| found.name() == pmu.name())));
    let events = pmus.filter(|_| cpu.is_none()).flat_map(Pmu::events);
    SimilarNames::to(name, events.chain(cpu.into_iter().flat_map(Cpu::events)).map(Event::name))
}

fn of_pmu(pmu: &'static Pmu, name: &str) -> Option<SharedEvent> {
    let event = pmu.event(name)?;
    let masks = pmu.unit_masks(event).collect();
    Some(SharedEvent { pmus: vec![pmu.name()], event, masks, modifiers: pmu.modifiers() })
}

fn of_cpu(cpu: &'static Cpu, name: &str) -> Option<SharedEvent> {
    let event = cpu.event(name)?;
    Some(SharedEvent {
        pmus: vec![cpu.name()],
        event,
        masks: cpu.unit_masks(event).collect(),
        modifiers: &[],
    })
}

impl SharedEvent {
    fn looks_like(&self, other: &Self) -> bool {
        (self.event.code(), &self.masks, self.modifiers)
            == (other.event.code(), &other.masks, other.modifiers)
    }
}

fn text(block: &SharedEvent) -> String {
    let SharedEvent { pmus, event, masks, modifiers } = block;
    let mut text = format!("{} {:#x}: {}\n", event.name(), event.code(), event.description());
    text += &format!("  pmu: {}\n", pmus.join(" "));
    for mask in masks {
        let marks: String = marks(mask).iter().map(|mark| format!(" [{mark}]")).collect();
        text += &format!("  {:#04x} {}: {}{marks}\n", mask.code(), mask.name(), mask.description());
    }
    if !modifiers.is_empty() {
        text += &format!("  modifiers: {}\n", letters(modifiers).join(" "));
    }
    text
}

fn letters(modifiers: &[Modifier]) -> Vec<&'static str> {
    modifiers.iter().map(|modifier| modifier.letter()).collect()
}

fn json(block: &SharedEvent) -> Value {
    let masks = block.masks.iter().map(|mask| {
        json!({
            "name": mask.name(),
            "code": format!("{:#x}", mask.code()),
            "group": mask.group(),
            "marks": marks(mask),
            "description": mask.description(),
        })
    });
    json!({
        "event": block.event.name(),
        "code": format!("{:#x}", block.event.code()),
        "description": block.event.description(),
        "pmus": block.pmus,
        "unit_masks": masks.collect::<Vec<_>>(),
        "modifiers": letters(block.modifiers),
    })
}

/// Returns the properties of a unit mask.
fn marks(mask: &UnitMask) -> Vec<String> {
    let mut marks = Vec::new();
    if mask.group() > 0 {
        marks.push(format!("group {}", mask.group()));
    }
    for (is_so, mark) in
        [(mask.is_default(), "default"), (mask.is_exclusive(), "alone"), (mask.is_omittable(), "optional")]
    {
        if is_so {
            marks.push(mark.to_owned());
        }
    }
    marks
}
