//! `pugmark decode`: prints a trace's totals.

use super::{
    branches::{self, BranchOptions, TraceContents},
    check::Check,
    code::TracedCode,
    layers,
    loaded::{LoadedSession, SharedSession},
    options::{Input, LayerOptions},
    progress::{Progress, Size},
    recording::{IndexedPart, Traced},
    segments::each,
    threads,
    totals::Json,
    verdict::Verdict,
};
use crate::output::{self, tell};
use crate::session::Session;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use pugmark_decoder_core::{config::Config, errata::Cpu, image::Image};
use serde::Serialize;
use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
    thread,
};

pub use super::totals::{Totals, TraceError, hash_text};

/// The options of `pugmark decode`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark decode --check ls.rec                                     a recording of `pugmark record`
  pugmark decode --cpu skylake --elf a.out:0x400000 trace.pt        a trace of a real processor")]
pub struct DecodeOptions {
    /// Compare the instructions with truth.json beside the trace; status 1 if they differ
    #[arg(long)]
    check: bool,
    /// Exit with status 0 even if the trace has errors
    #[arg(long)]
    allow_errors: bool,
    /// Print the hash of the instructions' addresses: FNV-1a 64, each as 8 bytes, low first
    #[arg(long)]
    hash: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layers: LayerOptions,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    branches: BranchOptions,
}

/// A layer of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Packets, or branch records.
    Packets,
    /// Events: what packets mean together.
    Events,
    /// Branches and events, each when it is asked for.
    Query,
    /// Instructions.
    Insns,
    /// Blocks of instructions, which is the fast way to the instructions.
    Blocks,
    /// Pairs of blocks, counted in a map. Only measured.
    Edges,
}

impl Layer {
    /// Returns true if the layer decodes code.
    #[must_use]
    pub fn needs_code(self) -> bool {
        matches!(self, Self::Insns | Self::Blocks | Self::Edges)
    }
}

/// Runs `pugmark decode`. The exit status is 1 if a trace has errors, overflows or no packets, unless that is allowed,
/// and if it
/// differs from its truth.
///
/// # Errors
/// If there is no trace or no code to decode, no truth to compare with, or the output cannot be written. Errors in the
/// trace are in the totals.
pub fn run(options: &DecodeOptions) -> Result<ExitCode> {
    options.can_check()?;
    ensure!(options.layers.layer != Layer::Edges, "edges are for `pugmark bench`: use --layer blocks");
    ensure!(
        options.layers.threads.get() == 1 || options.branches.source == TraceContents::Pt,
        "--threads needs an Intel PT trace: branch records are decoded on one thread"
    );
    ensure!(
        options.branches.source != TraceContents::Pt || !options.branches.are_any_given(),
        "--next, --start, --end, --handler and --one-level are for branch records: use --source"
    );
    let mut verdict = Verdict::default();
    let traces = options.input.traces(&mut verdict)?;
    let decoded = traces.iter().map(|traced| options.decode(traced)).collect::<Result<Vec<_>>>()?;
    let counts = matches!(options.layers.layer, Layer::Insns | Layer::Blocks) && !options.check;
    for (traced, decoded) in traces.iter().zip(&decoded).filter(|_| counts) {
        if let [DecodedTrace { totals, .. }] = &decoded[..]
            && totals.errors.is_empty()
            && totals.packets > 0
        {
            verdict.errors += traced.misses(totals.instructions);
        }
    }
    let decoded = decoded.concat();
    let is_good = |decoded: &DecodedTrace| {
        let Totals { packets, errors, overflows, .. } = &decoded.totals;
        let found = *packets > 0 && errors.is_empty() && *overflows == 0;
        (found || options.allow_errors) && decoded.check.as_ref().is_none_or(|check| check.equal)
    };
    let good = decoded.iter().all(is_good) && (verdict.is_good() || options.allow_errors);
    output::print(|out| match options.json {
        true => writeln!(out, "{}", options.json(&decoded)?),
        false => options.print(&decoded, out),
    })?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A trace that was decoded.
#[derive(Clone)]
pub(super) struct DecodedTrace {
    /// The part of the recording that it is, if a recording's folder is decoded.
    part: Option<IndexedPart>,
    cpu: Option<Cpu>,
    pub(super) totals: Totals,
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
    part: IndexedPart,
    #[serde(flatten)]
    totals: Json,
}

impl fmt::Display for Layer {
    /// Writes the layer's name as `--layer` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

impl DecodeOptions {
    /// Checks that the requested layer and source have a truth to compare with.
    fn can_check(&self) -> Result<()> {
        let layer = self.layers.layer;
        let has_insns =
            matches!(layer, Layer::Insns | Layer::Blocks) && self.branches.source == TraceContents::Pt;
        ensure!(
            !self.check || has_insns,
            "--check needs the instructions of an Intel PT trace: use --layer insns or blocks, and no other --source"
        );
        Ok(())
    }

    /// Decodes each trace.
    pub(super) fn decode(&self, traced: &Traced) -> Result<Vec<DecodedTrace>> {
        let mut progress = Progress::stderr();
        let loaded = LoadedSession::for_layer(self.layers, &self.input, traced, &mut progress)?;
        let sections = loaded.sections();
        let mut decoded = vec![];
        let all = match loaded.traces.len() {
            1 => vec![self.totals(&loaded, &loaded.session(&sections), &mut progress)?],
            _ => self.side_by_side(loaded.shared(&sections), loaded.traces.len(), &mut progress),
        };
        for (trace, totals) in loaded.traces.iter().zip(all) {
            if let Some(warning) = self.warning(traced, &trace.bytes, &totals) {
                tell(format_args!("pugmark: warning: {warning}"));
            }
            let check = match self.check {
                true => Some(compare(traced, &totals)?),
                false => None,
            };
            decoded.push(DecodedTrace { part: trace.part.clone(), cpu: loaded.config.cpu, totals, check });
        }
        Ok(decoded)
    }

    /// Decodes several traces of Intel PT, each on one thread.
    fn side_by_side(&self, shared: SharedSession<'_>, count: usize, progress: &mut Progress) -> Vec<Totals> {
        let (layer, hash) = (self.layers.layer, self.needs_hash());
        let threads = self.layers.threads.get().min(count);
        let mut hidden: Vec<_> = (1..threads).map(|_| Progress::hidden()).collect();
        let mut workers: Vec<_> = std::iter::once(progress).chain(&mut hidden).collect();
        let numbers: Vec<usize> = (0..count).collect();
        each(&numbers, &mut workers, |progress, number| {
            let session = shared.session();
            let mut totals = decode_trace(&session, *number, layer, hash, progress);
            totals.explain(session.traces[*number], session.config);
            totals
        })
    }

    const fn needs_hash(&self) -> bool {
        self.hash || self.json || self.check
    }

    /// Decodes the only trace.
    fn totals(
        &self,
        loaded: &LoadedSession,
        session: &Session<'_>,
        progress: &mut Progress,
    ) -> Result<Totals> {
        let (layer, hash) = (self.layers.layer, self.needs_hash());
        let (trace, config, threads) = (session.traces[0], session.config, self.layers.threads);
        if self.branches.source != TraceContents::Pt {
            return branches::decode(trace, loaded.code(0), &self.branches, layer, hash, progress);
        }
        // The hash is of all addresses in order, and one thread follows the switches of a processor.
        let alone = threads.get() == 1 || hash && layer.needs_code() || session.images.len() > 1;
        let mut totals = match alone {
            true => decode_trace(session, 0, layer, hash, progress),
            false => threads::decode(trace, loaded.code(0), config, layer, threads, progress),
        };
        totals.explain(trace, config);
        Ok(totals)
    }

    fn json(&self, traces: &[DecodedTrace]) -> io::Result<String> {
        let json =
            |trace: &DecodedTrace| trace.totals.json(self.layers.layer, trace.cpu, trace.check.clone());
        let sum = |field: fn(&Totals) -> u64| traces.iter().map(|trace| field(&trace.totals)).sum();
        let part_json =
            |trace: &DecodedTrace| Some(PartJson { part: trace.part.clone()?, totals: json(trace) });
        let folder = FolderJson {
            bytes: sum(|totals| totals.bytes),
            packets: sum(|totals| totals.packets),
            instructions: sum(|totals| totals.instructions),
            errors: traces.iter().map(|trace| trace.totals.errors.len()).sum(),
            parts: traces.iter().filter_map(part_json).collect(),
        };
        Ok(match traces {
            [trace] if trace.part.is_none() => serde_json::to_string(&json(trace))?,
            _ => serde_json::to_string(&folder)?,
        })
    }

    fn print(&self, traces: &[DecodedTrace], out: &mut dyn Write) -> io::Result<()> {
        for trace in traces {
            if let Some(part) = &trace.part {
                writeln!(out, "{}", part.title())?;
            }
            trace.totals.print(self.layers.layer, out)?;
            if let Some(cpu) = trace.cpu {
                writeln!(out, "processor     {cpu}")?;
            }
            if let Some(check) = &trace.check {
                writeln!(out, "check         {check}")?;
            }
            if trace.part.is_some() {
                writeln!(out)?;
            }
        }
        if traces.iter().any(|trace| trace.part.is_some()) {
            let instructions: u64 = traces.iter().map(|trace| trace.totals.instructions).sum();
            let errors: usize = traces.iter().map(|trace| trace.totals.errors.len()).sum();
            writeln!(out, "in all {}: {instructions} instructions, {errors} errors", traces.len())?;
        }
        Ok(())
    }

    /// Returns a warning about options or a trace that are probably not what the user meant.
    fn warning(&self, traced: &Traced, trace: &[u8], totals: &Totals) -> Option<String> {
        let Self { input, layers, branches, .. } = self;
        let is_pt = branches.source == TraceContents::Pt;
        if trace.is_empty() || is_pt && totals.packets == 0 && totals.errors.is_empty() {
            return traced.no_trace(trace);
        }
        (layers.layer.needs_code() && !input.has_code(traced) && !totals.errors.is_empty()).then(|| {
            "no code was given, and instructions are decoded from code: use --image, --elf or --raw, or --layer packets"
                .into()
        })
    }
}

/// Compares a decoded trace with the truth beside it.
fn compare(traced: &Traced, totals: &Totals) -> Result<Check> {
    let check = traced.description.as_ref().and_then(|truth| Check::new(totals, truth));
    let trace = traced.trace.display();
    check.with_context(|| {
        format!("--check: no truth.json with count and hash beside {trace}; `pugmark record` writes one")
    })
}

/// Decodes a trace from its first PSB on, and hashes the instructions' addresses if `hash` is set.
pub fn decode(
    trace: &[u8],
    code: &TracedCode,
    config: Config<'_>,
    layer: Layer,
    hash: bool,
    progress: &mut Progress,
) -> Totals {
    let sections = code.sections();
    decode_trace(&Session::alone(trace, Image::new(&sections), config), 0, layer, hash, progress)
}

/// Decodes one of a session's traces as [`decode`] does.
fn decode_trace(
    session: &Session<'_>,
    number: usize,
    layer: Layer,
    hash: bool,
    progress: &mut Progress,
) -> Totals {
    let (trace, config) = (session.traces[number], session.config);
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
            Layer::Insns => Totals { blocks: 0, ..layers::blocks(session, number, hash, progress) },
            Layer::Blocks | Layer::Edges => layers::blocks(session, number, hash, progress),
        };
        let Totals { bytes, packets, overflows, first_overflow, tsc_first, tsc_last, .. } =
            match (layer, counting) {
                (Layer::Packets, _) => return totals,
                // The counting thread does not panic.
                (_, Some(counting)) => counting.join().unwrap_or_default(),
                (_, None) => count(),
            };
        Totals { bytes, packets, overflows, first_overflow, tsc_first, tsc_last, ..totals }
    });
    progress.end();
    totals
}
