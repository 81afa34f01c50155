//! `pugmark decode`: a trace's totals.

use super::{
    branches::{self, Source},
    code::Code,
    layers,
    options::Input,
    progress::{Progress, Size},
};
use crate::output::{self, tell};
use anyhow::Result;
use clap::{Args, ValueEnum};
use pugmark_decoder_core::{Error, ErrorKind, bts, config::Config, hash::AddressHash, image::Image};
use serde::Serialize;
use std::{
    io::{self, Write},
    process::ExitCode,
    thread,
};

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

/// How many errors are told to a reader, who looks at the first ones anyway.
const SHOWN: usize = 100;

/// What a layer made of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Bytes of the trace.
    pub bytes: u64,
    /// Packets, or branch records.
    pub packets: u64,
    /// Events that the layer gave.
    pub events: u64,
    /// Conditional branches that the query layer gave.
    pub conditional: u64,
    /// Indirect branches that the query layer gave.
    pub indirect: u64,
    /// Instructions.
    pub instructions: u64,
    /// Blocks.
    pub blocks: u64,
    /// What was wrong. After each error the layer went on at the next PSB, or with the next record.
    pub errors: Vec<Problem>,
    /// Of the instructions' addresses, where it was asked for and the layer has instructions.
    pub hash: Option<AddressHash>,
    /// The first and the last TSC packet's value.
    pub tsc_first: Option<u64>,
    /// See `tsc_first`.
    pub tsc_last: Option<u64>,
}

/// Something that was wrong in a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The offset of the packet or record.
    pub offset: u64,
    /// The address of the instruction, if it is about one.
    pub address: Option<u64>,
    /// What.
    pub text: String,
    /// What to do about it.
    #[serde(skip)]
    pub advice: &'static str,
}

/// What to do about an error.
fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NoMemory { .. } => "give the code at these addresses with --image, --elf or --raw",
        _ if kind.ip().is_some() => {
            "look whether the code is that which was traced, at the same addresses, and --cpu the processor"
        }
        _ => "the trace is damaged there; or look whether --cpu is the processor, for its errata",
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let Error { offset, kind, .. } = error;
        Self { offset, address: kind.ip(), text: kind.to_string(), advice: advice(kind) }
    }
}

/// An error in a record, and how many bytes a record has.
impl From<(bts::Error, usize)> for Problem {
    fn from((error, size): (bts::Error, usize)) -> Self {
        let offset = error.index.saturating_mul(size as u64);
        let advice =
            "look whether the code is that which was traced, at the same addresses, and --source the layout";
        Self { offset, address: error.kind.ip(), text: error.to_string(), advice }
    }
}

/// Totals as one JSON object.
#[derive(Serialize)]
struct Json {
    layer: Layer,
    bytes: u64,
    packets: u64,
    events: u64,
    conditional_branches: u64,
    indirect_branches: u64,
    instructions: u64,
    blocks: u64,
    errors: Vec<Problem>,
    hash: Option<String>,
    tsc_first: Option<u64>,
    tsc_last: Option<u64>,
}

/// Runs `pugmark decode`. The exit status is 1 where something is wrong in the trace, or nothing is in it, unless that is
/// allowed.
///
/// # Errors
/// When there is no trace or no code to decode, or nobody to print for. What is wrong in the trace is in the totals.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let code = options.input.code()?;
    let trace = options.input.load(&mut progress)?;
    let (layer, hash) = (options.input.layer, options.hash || options.json);
    let totals = match options.branches.source {
        Source::Pt => decode(&trace, &code, options.input.config()?, layer, hash, &mut progress),
        _ => branches::decode(&trace, &code, &options.branches, layer, hash, &mut progress)?,
    };
    if let Some(warning) = options.warning(&totals) {
        tell(format_args!("pugmark: warning: {warning}"));
    }
    output::print(|out| match options.json {
        true => writeln!(out, "{}", serde_json::to_string(&totals.json(layer))?),
        false => totals.print(layer, out),
    })?;
    let found = totals.packets > 0 && totals.errors.is_empty();
    Ok(if found || options.allow_errors { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Options {
    /// What is probably not as it was meant.
    fn warning(&self, totals: &Totals) -> Option<String> {
        let Self { input, branches, .. } = self;
        let trace = input.trace.display();
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
        (needs_code && !input.has_code() && !totals.errors.is_empty()).then(|| {
            "no code was given, which instructions come from: --image, --elf or --raw; --layer packets needs none".into()
        })
    }
}

/// Decodes a trace from its first PSB on; the instructions' hash if it is asked for.
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
    // Packets are counted in the packet layer whichever layer is asked for: one above it may skip some.
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
            // It does not panic.
            (_, Some(counting)) => counting.join().unwrap_or_default(),
            (_, None) => count(),
        };
        Totals { bytes, packets, tsc_first, tsc_last, ..totals }
    });
    progress.end();
    totals
}

impl Totals {
    fn json(&self, layer: Layer) -> Json {
        Json {
            layer,
            bytes: self.bytes,
            packets: self.packets,
            events: self.events,
            conditional_branches: self.conditional,
            indirect_branches: self.indirect,
            instructions: self.instructions,
            blocks: self.blocks,
            errors: self.errors.clone(),
            hash: self.hash.map(hash_text),
            tsc_first: self.tsc_first,
            tsc_last: self.tsc_last,
        }
    }

    fn print(&self, layer: Layer, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "bytes         {}", self.bytes)?;
        writeln!(out, "packets       {}", self.packets)?;
        if layer != Layer::Packets {
            writeln!(out, "events        {}", self.events)?;
        }
        match layer {
            Layer::Packets | Layer::Events => {}
            Layer::Query => {
                writeln!(out, "conditional   {}", self.conditional)?;
                writeln!(out, "indirect      {}", self.indirect)?;
            }
            Layer::Insns | Layer::Blocks => {
                writeln!(out, "instructions  {}", self.instructions)?;
                if layer == Layer::Blocks {
                    writeln!(out, "blocks        {}", self.blocks)?;
                }
                if let Some(hash) = self.hash {
                    writeln!(out, "hash          {}", hash_text(hash))?;
                }
            }
        }
        for (name, tsc) in [("tsc first", self.tsc_first), ("tsc last", self.tsc_last)] {
            if let Some(tsc) = tsc {
                writeln!(out, "{name:<13} {tsc:#x}")?;
            }
        }
        writeln!(out, "errors        {}", self.errors.len())?;
        for error in self.errors.iter().take(SHOWN) {
            writeln!(out, "  {:#x}: {}", error.offset, error.text)?;
        }
        if let Some(more) = self.errors.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            writeln!(out, "  and {more} more, which --json tells")?;
        }
        let mut told = vec![];
        for advice in self.errors.iter().map(|error| error.advice) {
            if !told.contains(&advice) {
                writeln!(out, "advice: {advice}")?;
                told.push(advice);
            }
        }
        Ok(())
    }
}

/// A hash as the totals have it.
#[must_use]
pub fn hash_text(hash: AddressHash) -> String {
    format!("{:#018x}", hash.value())
}
