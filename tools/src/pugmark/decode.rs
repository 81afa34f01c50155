//! `pugmark decode`: prints a trace's totals.

use super::{
    branches::{self, Source},
    check::Check,
    code::Code,
    layers,
    options::Input,
    progress::{Progress, Size},
    recording::{Task, Traced},
    totals::Json,
};
use crate::output::{self, tell};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use pugmark_decoder_core::{config::Config, errata::Cpu, image::Image};
use serde::Serialize;
use std::{
    io::{self, Write},
    process::ExitCode,
    thread,
};

pub use super::totals::{Problem, Totals, hash_text};

/// The options of `pugmark decode`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    branches: branches::Arguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the hash of the instructions' addresses (FNV-1a 64, each as 8 bytes, the lowest first)
    #[arg(long)]
    hash: bool,
    /// Hold count and hash of the instructions against truth.json beside the trace; status 1 when they differ
    #[arg(long)]
    check: bool,
    /// End with status 0 whatever is wrong in the trace
    #[arg(long)]
    allow_errors: bool,
}

/// A layer of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Packets alone, or branch records
    Packets,
    /// What packets mean together
    Events,
    /// Branches and events, as one asks for them
    Query,
    /// The instruction flow
    Insns,
    /// The instruction flow by blocks
    Blocks,
}

/// Runs `pugmark decode`. The exit status is 1 if a trace has errors or no packets, unless that is allowed, and if it
/// differs from its truth.
///
/// # Errors
/// If there is no trace or no code to decode, no truth to compare with, or the output cannot be written. Errors in the
/// trace are in the totals.
pub fn run(options: &Options) -> Result<ExitCode> {
    options.can_check()?;
    let traces = options.input.traces()?;
    let parts: Vec<Part> = traces.into_iter().map(|traced| options.part(traced)).collect::<Result<_>>()?;
    let is_good = |part: &Part| {
        let found = part.totals.packets > 0 && part.totals.errors.is_empty();
        (found || options.allow_errors) && part.check.as_ref().is_none_or(|check| check.equal)
    };
    let good = parts.iter().all(is_good);
    output::print(|out| match options.json {
        true => writeln!(out, "{}", options.json(parts)?),
        false => options.print(&parts, out),
    })?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A trace that was decoded.
struct Part {
    task: Option<Task>,
    cpu: Option<Cpu>,
    totals: Totals,
    check: Option<Check>,
}

/// The traces of a recording's folder as one JSON object.
#[derive(Serialize)]
struct FolderJson {
    parts: Vec<PartJson>,
    bytes: u64,
    packets: u64,
    instructions: u64,
    errors: usize,
}

#[derive(Serialize)]
struct PartJson {
    #[serde(flatten)]
    task: Task,
    #[serde(flatten)]
    totals: Json,
}

impl Options {
    /// Checks that the requested layer and source have a truth to compare with.
    fn can_check(&self) -> Result<()> {
        let layer = self.input.layer;
        let has_insns = matches!(layer, Layer::Insns | Layer::Blocks) && self.branches.source == Source::Pt;
        ensure!(
            !self.check || has_insns,
            "--check holds the instructions of a trace of Intel PT against their truth: --layer insns or blocks"
        );
        Ok(())
    }

    fn part(&self, traced: Traced) -> Result<Part> {
        let mut progress = Progress::stderr();
        let code = self.input.code(&traced)?;
        let trace = self.input.load(&traced, &mut progress)?;
        let config = self.input.config(&traced)?;
        let (layer, hash) = (self.input.layer, self.hash || self.json || self.check);
        let totals = match self.branches.source {
            Source::Pt => {
                let mut totals = decode(&trace, &code, config, layer, hash, &mut progress);
                totals.explain(&trace, config);
                totals
            }
            _ => branches::decode(&trace, &code, &self.branches, layer, hash, &mut progress)?,
        };
        if let Some(warning) = self.warning(&traced, &totals) {
            tell(format_args!("pugmark: warning: {warning}"));
        }
        let check =
            match self.check {
                true => {
                    let truth = traced.description.as_ref().and_then(|truth| Check::new(&totals, truth));
                    let trace = traced.trace.display();
                    Some(truth.with_context(|| {
                        format!("--check: no truth.json with count and hash beside {trace}")
                    })?)
                }
                false => None,
            };
        Ok(Part { task: traced.task, cpu: config.cpu, totals, check })
    }

    fn json(&self, parts: Vec<Part>) -> io::Result<String> {
        let json = |part: &Part| part.totals.json(self.input.layer, part.cpu, part.check.clone());
        let sum = |field: fn(&Totals) -> u64| parts.iter().map(|part| field(&part.totals)).sum();
        let folder = FolderJson {
            bytes: sum(|totals| totals.bytes),
            packets: sum(|totals| totals.packets),
            instructions: sum(|totals| totals.instructions),
            errors: parts.iter().map(|part| part.totals.errors.len()).sum(),
            parts: parts
                .iter()
                .filter_map(|part| Some(PartJson { task: part.task.clone()?, totals: json(part) }))
                .collect(),
        };
        Ok(match &parts[..] {
            [part] if part.task.is_none() => serde_json::to_string(&json(part))?,
            _ => serde_json::to_string(&folder)?,
        })
    }

    fn print(&self, parts: &[Part], out: &mut dyn Write) -> io::Result<()> {
        for part in parts {
            if let Some(task) = &part.task {
                writeln!(out, "{}", task.title())?;
            }
            part.totals.print(self.input.layer, out)?;
            if let Some(cpu) = part.cpu {
                writeln!(out, "processor     {cpu}")?;
            }
            if let Some(check) = &part.check {
                writeln!(out, "check         {check}")?;
            }
            if part.task.is_some() {
                writeln!(out)?;
            }
        }
        if parts.iter().any(|part| part.task.is_some()) {
            let instructions: u64 = parts.iter().map(|part| part.totals.instructions).sum();
            let errors: usize = parts.iter().map(|part| part.totals.errors.len()).sum();
            writeln!(out, "in all {}: {instructions} instructions, {errors} errors", parts.len())?;
        }
        Ok(())
    }

    /// Returns a warning about options or a trace that are probably not what the user meant.
    fn warning(&self, traced: &Traced, totals: &Totals) -> Option<String> {
        let Self { input, branches, .. } = self;
        let trace = traced.trace.display();
        if totals.bytes == 0 {
            return Some(format!("{trace} is empty: there is nothing to decode"));
        }
        if branches.source == Source::Pt && totals.packets == 0 && totals.errors.is_empty() {
            return Some(format!(
                "no PSB in the {} bytes of {trace}: is it a trace of Intel PT? --source says what it is",
                totals.bytes
            ));
        }
        let needs_code = matches!(input.layer, Layer::Insns | Layer::Blocks);
        (needs_code && !input.has_code(traced) && !totals.errors.is_empty()).then(|| {
            "no code was given, which instructions come from: --image, --elf or --raw; --layer packets needs none".into()
        })
    }
}

/// Decodes a trace from its first PSB on, and hashes the instructions' addresses if `hash` is set.
pub fn decode(
    trace: &[u8],
    code: &Code,
    config: Config<'_>,
    layer: Layer,
    hash: bool,
    progress: &mut Progress,
) -> Totals {
    let sections = code.sections();
    let image = Image::new(&sections);
    progress.begin("decoding", Size::Bytes(trace.len() as u64));
    // Packets are always counted in the packet layer, because the layers above it may skip some.
    let totals = thread::scope(|scope| {
        let count = || layers::packets(trace, config, &mut Progress::hidden());
        let counting = match layer {
            Layer::Packets => None,
            _ => thread::Builder::new().spawn_scoped(scope, count).ok(),
        };
        let totals = match layer {
            Layer::Packets => layers::packets(trace, config, progress),
            Layer::Events => layers::events(trace, config, progress),
            Layer::Query => layers::query(trace, config, progress),
            Layer::Insns => layers::insns(trace, image, config, hash, progress),
            Layer::Blocks => layers::blocks(trace, image, config, hash, progress),
        };
        let Totals { bytes, packets, tsc_first, tsc_last, .. } = match (layer, counting) {
            (Layer::Packets, _) => return totals,
            // The counting thread does not panic.
            (_, Some(counting)) => counting.join().unwrap_or_default(),
            (_, None) => count(),
        };
        Totals { bytes, packets, tsc_first, tsc_last, ..totals }
    });
    progress.end();
    totals
}
