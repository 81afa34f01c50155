//! `pugmark pmc list`: prints the PMUs, or the events of one.

use super::names::{self, SimilarNames};
use crate::output;
use anyhow::{Result, bail};
use clap::Args;
use pugmark_pfm::{Cpu, Event, Pmu};
use serde_json::json;
use std::io::Write;

/// The options of `pugmark pmc list`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark pmc list zen4")]
pub(super) struct ListOptions {
    /// Print the events of this PMU: its name, the end of it (zen4), a code name, or a processor of `dispatch`
    pmu: Option<String>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &ListOptions) -> Result<()> {
    let mut text = vec![];
    write(options, &mut text)?;
    output::page(|out| out.write_all(&text))
}

fn write(options: &ListOptions, to: &mut Vec<u8>) -> Result<()> {
    let Some(name) = &options.pmu else {
        return all(to, options.json);
    };
    let events: Vec<&Event> = match (Pmu::by_name(name), Cpu::by_name(name), names::pmu(name)) {
        (Some(pmu), ..) | (None, None, Some(pmu)) => pmu.events().collect(),
        (None, Some(cpu), _) => cpu.events().collect(),
        (None, None, None) => {
            bail!(
                "NOTFOUND: no PMU and no processor is called {name:?}{}",
                SimilarNames::to(name, names::all())
            )
        }
    };
    for event in events {
        if options.json {
            let (name, description) = (event.name(), event.description());
            let code = format!("{:#x}", event.code());
            writeln!(to, "{}", json!({ "event": name, "code": code, "description": description }))?;
        } else {
            writeln!(to, "{}\t{:#05x}\t{}", event.name(), event.code(), event.description())?;
        }
    }
    Ok(())
}

/// Prints the PMUs, then the processors.
fn all(to: &mut Vec<u8>, json: bool) -> Result<()> {
    let pmus = Pmu::all().iter().map(|pmu| ("pmu", pmu.name(), pmu.title(), pmu.events().count()));
    let cpus = Cpu::all().iter().map(|cpu| ("cpu", cpu.name(), cpu.title(), cpu.events().count()));
    for (kind, name, title, events) in pmus.chain(cpus) {
        if json {
            writeln!(to, "{}", json!({ kind: name, "events": events, "description": title }))?;
        } else {
            writeln!(to, "{kind}\t{name}\t{events} events\t{title}")?;
        }
    }
    Ok(())
}
