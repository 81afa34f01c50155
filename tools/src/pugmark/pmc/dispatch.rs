//! `pugmark pmc dispatch`: assigns events to counters and prints the registers to write.

use super::{
    batch,
    names::{self, SimilarNames},
    number,
    row::BatchRow,
};
use crate::output::tell;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use pugmark_pfm::{
    Cpu, Event, Levels, UnitMask,
    dispatch::{
        ControlRegister, CounterFeatures, CounterFlags, Dispatch, Features, FindErrorKind, IbsFetch, IbsOp,
        IbsPmds, Pmc, Request,
    },
};
use serde_json::{Value, json};
use std::io::{self, Write};

/// The options of `pugmark pmc dispatch`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark pmc dispatch --cpu zen4 RETIRED_INSTRUCTIONS@u")]
pub(super) struct DispatchOptions {
    /// Events as libpfm3 names them: EVENT[:UNIT_MASK…][@LEVELS]
    #[arg(value_name = "EVENT", conflicts_with = "batch")]
    events: Vec<String>,
    /// The processor: its name in `pugmark pmc list`, the end of it (zen4), or a code name
    #[arg(long, required_unless_present = "batch", conflicts_with = "batch")]
    cpu: Option<String>,
    /// Where to count, for events that do not say it: letters of ku, or a mask
    #[arg(long, value_name = "LEVELS", default_value = "ku", value_parser = super::levels)]
    plm: Levels,
    /// Counters that are already in use: bit n for counter n
    #[arg(long, value_name = "MASK", default_value = "0", value_parser = mask)]
    unavailable: u64,
    /// Count the clocks with at least COUNT events, 1 to 3
    #[arg(long, value_name = "COUNT", value_parser = count)]
    cnt_mask: Option<u32>,
    /// Count the clocks with fewer than COUNT events
    #[arg(long)]
    inv: bool,
    /// Count how often the event begins, instead of for how long it lasts
    #[arg(long)]
    edge: bool,
    /// Count only in guests
    #[arg(long)]
    guest: bool,
    /// Count only in the host
    #[arg(long)]
    host: bool,
    /// Sample fetches with this period; with rand, a randomised one
    #[arg(long, value_name = "MAXCNT[,rand]", value_parser = ibs_fetch)]
    ibs_fetch: Option<IbsFetch>,
    /// Sample ops with this period in clocks; with uops, in dispatched ops
    #[arg(long, value_name = "MAXCNT[,uops]", value_parser = ibs_op)]
    ibs_op: Option<IbsOp>,
    /// Answer the requests on standard input, each a line of ten columns separated by tabs
    #[arg(long, conflicts_with = "json")]
    batch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &DispatchOptions) -> Result<()> {
    if options.batch {
        return run_batch();
    }
    let name = options.cpu.as_deref().unwrap_or_default();
    let cpu = names::cpu(name).ok_or_else(|| {
        let near = SimilarNames::to(name, Cpu::all().iter().map(Cpu::name));
        anyhow!("NOTFOUND: no processor is called {name:?}{near}")
    })?;
    let mut events = Vec::new();
    for text in &options.events {
        let (event, levels) = split(text)?;
        let selection = cpu.select(event).map_err(|error| {
            let near = match error.kind {
                FindErrorKind::UnknownEvent => SimilarNames::to(error.text, cpu.events().map(Event::name)),
                FindErrorKind::UnknownUnitMask => SimilarNames::to(error.text, masks(cpu, event)),
                _ => SimilarNames::default(),
            };
            anyhow!("{}: {error}{near}", error.kind.name())
        })?;
        events.push(selection.with_levels(levels));
    }
    let request = Request {
        events: &events,
        levels: options.plm,
        unavailable: options.unavailable,
        features: options.features(),
    };
    let dispatch = cpu.dispatch(&request).map_err(|error| anyhow!("{}: {error}", error.name()))?;
    if options.json {
        writeln!(io::stdout(), "{}", json(&dispatch))?;
    } else {
        write!(io::stdout(), "{}", text(&dispatch))?;
    }
    Ok(())
}

/// Returns the unit masks of the event that a request names.
fn masks(cpu: &'static Cpu, request: &str) -> impl Iterator<Item = &'static str> {
    let event = cpu.event(request.split(':').next().unwrap_or_default());
    event.into_iter().flat_map(|event| cpu.unit_masks(event)).map(UnitMask::name)
}

/// Splits `EVENT[@LEVELS]` into the event and its levels. Without levels, the request's levels apply.
pub(super) fn split(text: &str) -> Result<(&str, Levels)> {
    match text.rsplit_once('@') {
        Some((event, levels)) => Ok((event, super::levels(levels).with_context(|| format!("{text:?}"))?)),
        None => Ok((text, Levels::empty())),
    }
}

/// Answers the rows of standard input. Fails at the end if a row was not a request.
fn run_batch() -> Result<()> {
    let mut refused = 0;
    batch::run(|line, text| {
        BatchRow::parse(text).map(|row| row.answer()).unwrap_or_else(|error| {
            tell(format_args!("line {line}: {error:#}"));
            refused += 1;
            "INVAL\t-\t-\t-".to_owned()
        })
    })?;
    if refused > 0 {
        bail!("{refused} lines are not requests, as said above");
    }
    Ok(())
}

impl DispatchOptions {
    /// Returns the features, or `None` if no option needs one: libpfm3 distinguishes that from features that are all
    /// off.
    fn features(&self) -> Option<Features> {
        let mut flags = CounterFlags::empty();
        flags.set(CounterFlags::INV, self.inv);
        flags.set(CounterFlags::EDGE, self.edge);
        flags.set(CounterFlags::GUEST, self.guest);
        flags.set(CounterFlags::HOST, self.host);
        let counter = CounterFeatures { counter_mask: self.cnt_mask.unwrap_or(0), flags };
        let features = Features { counters: [counter; _], ibs_fetch: self.ibs_fetch, ibs_op: self.ibs_op };
        (features != Features::default() || self.cnt_mask.is_some()).then_some(features)
    }
}

fn text(dispatch: &Dispatch) -> String {
    let mut text = String::new();
    for pmc in dispatch.pmcs() {
        text += &format!("{pmc} {} MSR {:#x}\n", register(pmc), pmc.msr());
    }
    for pmd in dispatch.pmds() {
        text += &format!("{pmd}\n");
    }
    for (name, unit) in [("fetch", dispatch.ibs_fetch()), ("op", dispatch.ibs_op())] {
        if let Some(IbsPmds { base, number, count }) = unit {
            text += &format!("{name}_base={base} pmd{number}..pmd{}\n", number + count - 1);
        }
    }
    text
}

fn register(pmc: &Pmc) -> String {
    match pmc.register() {
        ControlRegister::Counter(number) => format!("PERFEVTSEL{number}"),
        ControlRegister::IbsFetch => "IbsFetchCtl".to_owned(),
        ControlRegister::IbsOp => "IbsOpCtl".to_owned(),
    }
}

fn json(dispatch: &Dispatch) -> Value {
    let hex = |number: u64| format!("{number:#x}");
    let pmcs = dispatch.pmcs().iter().map(|pmc| {
        json!({
            "number": pmc.number,
            "register": register(pmc),
            "msr": hex(pmc.msr().into()),
            "address": hex(pmc.address.into()),
            "value": hex(pmc.value),
        })
    });
    let pmds = dispatch
        .pmds()
        .iter()
        .map(|pmd| json!({ "number": pmd.number, "address": hex(pmd.address.into()), "rdpmc": pmd.rdpmc }));
    let unit = |unit: Option<IbsPmds>| {
        unit.map(|unit| json!({ "base": unit.base, "number": unit.number, "count": unit.count }))
    };
    json!({
        "pmcs": pmcs.collect::<Vec<_>>(),
        "pmds": pmds.collect::<Vec<_>>(),
        "ibs_fetch": unit(dispatch.ibs_fetch()),
        "ibs_op": unit(dispatch.ibs_op()),
    })
}

fn mask(text: &str) -> Result<u64> {
    crate::number::parse(text).ok_or_else(|| anyhow!("{text:?} is not a mask: write 6 or 0x6"))
}

fn count(text: &str) -> Result<u32> {
    number(text).ok_or_else(|| anyhow!("{text:?} is not a number of up to 32 bits"))
}

fn ibs_fetch(text: &str) -> Result<IbsFetch> {
    let (max_count, random) = period(text, "rand")?;
    Ok(IbsFetch { max_count, random })
}

fn ibs_op(text: &str) -> Result<IbsOp> {
    let (max_count, ops) = period(text, "uops")?;
    Ok(IbsOp { max_count, ops })
}

/// Reads `MAXCNT` or `MAXCNT,option`.
fn period(text: &str, option: &str) -> Result<(u32, bool)> {
    match text.split_once(',') {
        None => Ok((count(text)?, false)),
        Some((period, word)) if word == option => Ok((count(period)?, true)),
        Some((_, word)) => bail!("{word:?} after the comma, where only {option} may stand"),
    }
}
