//! `pugmark pmc encode`: prints the event select and canonical string of events.

use super::{
    batch,
    names::{self, SimilarNames},
};
use anyhow::{Result, anyhow};
use clap::Args;
use pugmark_pfm::{EncodeError, EncodeErrorKind, Encoding, Event, Levels, Pmu, UnitMask, encode};
use serde_json::json;
use std::io::{self, Write};

/// The options of `pugmark pmc encode`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark pmc encode amd64_fam19h_zen4::RETIRED_INSTRUCTIONS:u")]
pub(super) struct EncodeOptions {
    /// Events as libpfm4 names them: PMU::EVENT[:UNIT_MASK…][:MODIFIER[=VALUE]…]
    #[arg(value_name = "EVENT", required_unless_present = "batch", conflicts_with = "batch")]
    events: Vec<String>,
    /// Where to count, for events that do not say it: letters of kuh, or a mask
    #[arg(long, value_name = "LEVELS", default_value = "ku", value_parser = super::levels)]
    plm: Levels,
    /// Read events from standard input, one a line, and print error, code and canonical string
    #[arg(long, conflicts_with = "json")]
    batch: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &EncodeOptions) -> Result<()> {
    if options.batch {
        return batch::run(|_, line| answer(line, options.plm));
    }
    for event in &options.events {
        let encoded = encode(event, options.plm);
        if options.json {
            writeln!(io::stdout(), "{}", json(event, encoded))?;
        }
        let encoding =
            encoded.map_err(|error| anyhow!("{}: {error}{}", error.kind.name(), near(event, &error)))?;
        if !options.json {
            writeln!(io::stdout(), "{encoding} {:#x}", encoding.select())?;
        }
    }
    Ok(())
}

/// Returns names similar to the unknown one of the error.
fn near(request: &str, error: &EncodeError<'_>) -> SimilarNames {
    let (of, event) = request.split_once("::").unwrap_or_default();
    let pmu = Pmu::by_name(of);
    match error.kind {
        EncodeErrorKind::UnknownPmu => match names::pmu(of) {
            // libpfm takes only whole names; suggest the whole name of the PMU meant.
            Some(pmu) => SimilarNames(vec![pmu.name().to_owned()]),
            None => SimilarNames::to(error.text, Pmu::all().iter().map(Pmu::name)),
        },
        EncodeErrorKind::UnknownEvent => {
            SimilarNames::to(error.text, pmu.into_iter().flat_map(Pmu::events).map(Event::name))
        }
        EncodeErrorKind::UnknownAttribute => {
            let name = event.split([':', '.']).next().unwrap_or_default();
            let found = pmu.and_then(|pmu| Some((pmu, pmu.event(name)?)));
            SimilarNames::to(
                error.text,
                found.into_iter().flat_map(|(pmu, event)| pmu.unit_masks(event)).map(UnitMask::name),
            )
        }
        _ => SimilarNames::default(),
    }
}

/// Returns the line of answer: the name of the error, the code, the canonical string.
pub(super) fn answer(event: &str, levels: Levels) -> String {
    match encode(event, levels) {
        Ok(encoding) => format!("SUCCESS\t{:#x}\t{encoding}", encoding.select()),
        Err(error) => format!("{}\t-\t-", error.kind.name()),
    }
}

fn json(event: &str, encoded: Result<Encoding, EncodeError<'_>>) -> serde_json::Value {
    match encoded {
        Ok(encoding) => json!({
            "event": event,
            "pmu": encoding.pmu().name(),
            "name": encoding.event().name(),
            "code": format!("{:#x}", encoding.select()),
            "canonical": encoding.to_string(),
        }),
        Err(error) => json!({
            "event": event,
            "error": error.kind.name(),
            "offset": error.offset,
            "text": error.text,
            "message": error.kind.to_string(),
            "near": near(event, &error).0,
        }),
    }
}
