//! `pugmark pmc info`.

use anyhow::{Result, bail};
use clap::Args;
use pugmark_pfm::{Event, Pmu, UnitMask};
use serde_json::{Value, json};
use std::io::{self, Write};

/// The options of `pugmark pmc info`.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// The event: pmu::EVENT, or EVENT for all PMUs that have it
    event: String,
    /// Write JSON, an object a line
    #[arg(long)]
    json: bool,
}

/// An event, and the PMUs where it looks like this.
struct Block {
    pmus: Vec<&'static Pmu>,
    event: &'static Event,
    masks: Vec<&'static UnitMask>,
}

pub(super) fn run(options: &Options) -> Result<()> {
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

fn blocks(request: &str) -> Result<Vec<Block>> {
    let (pmus, name) = match request.split_once("::") {
        Some((pmu, name)) => match Pmu::by_name(pmu) {
            Some(pmu) => (vec![pmu], name),
            None => bail!("NOTFOUND: no PMU is called {pmu:?}"),
        },
        None => (Pmu::all().iter().collect(), request),
    };
    let mut blocks: Vec<Block> = Vec::new();
    for pmu in pmus {
        let Some(event) = pmu.event(name) else { continue };
        let masks: Vec<_> = pmu.unit_masks(event).collect();
        let same = |block: &&mut Block| {
            (block.event.code(), &block.masks) == (event.code(), &masks)
                && block.pmus.iter().all(|other| other.modifiers() == pmu.modifiers())
        };
        match blocks.iter_mut().find(same) {
            Some(block) => block.pmus.push(pmu),
            None => blocks.push(Block { pmus: vec![pmu], event, masks }),
        }
    }
    if blocks.is_empty() {
        bail!("NOTFOUND: no event is called {name:?}");
    }
    Ok(blocks)
}

fn text(block: &Block) -> String {
    let Block { pmus, event, masks } = block;
    let names = pmus.iter().map(|pmu| pmu.name()).collect::<Vec<_>>().join(" ");
    let mut text = format!("{} {:#x}: {}\n", event.name(), event.code(), event.description());
    text += &format!("  pmu: {names}\n");
    for mask in masks {
        let marks: String = marks(mask).iter().map(|mark| format!(" [{mark}]")).collect();
        text += &format!("  {:#04x} {}: {}{marks}\n", mask.code(), mask.name(), mask.description());
    }
    let modifiers = pmus[0].modifiers().iter().map(|modifier| modifier.letter()).collect::<Vec<_>>();
    text + &format!("  modifiers: {}\n", modifiers.join(" "))
}

fn json(block: &Block) -> Value {
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
        "pmus": block.pmus.iter().map(|pmu| pmu.name()).collect::<Vec<_>>(),
        "unit_masks": masks.collect::<Vec<_>>(),
        "modifiers": block.pmus[0].modifiers().iter().map(|modifier| modifier.letter()).collect::<Vec<_>>(),
    })
}

/// What is special about a unit mask.
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
