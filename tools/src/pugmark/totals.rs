//! What a layer made of a trace, as text and as JSON.

use super::{bdm70, check::Check, decode::Layer};
use pugmark_decoder_core::{Error, ErrorKind, bts, config::Config, errata::Cpu, hash::AddressHash};
use serde::Serialize;
use std::io::{self, Write};

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
    /// The erratum of the processor that explains it, where that was not allowed for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erratum: Option<&'static str>,
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
        Self { offset, address: kind.ip(), text: kind.to_string(), erratum: None, advice: advice(kind) }
    }
}

/// An error in a record, and how many bytes a record has.
impl From<(bts::Error, usize)> for Problem {
    fn from((error, size): (bts::Error, usize)) -> Self {
        let offset = error.index.saturating_mul(size as u64);
        let advice =
            "look whether the code is that which was traced, at the same addresses, and --source the layout";
        Self { offset, address: error.kind.ip(), text: error.to_string(), erratum: None, advice }
    }
}

/// Totals as one JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Json {
    layer: Layer,
    cpu: Option<String>,
    bytes: u64,
    packets: u64,
    events: u64,
    conditional_branches: u64,
    indirect_branches: u64,
    instructions: u64,
    blocks: u64,
    errors: Vec<Problem>,
    /// What to do about them.
    advice: Vec<&'static str>,
    hash: Option<String>,
    tsc_first: Option<u64>,
    tsc_last: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Check>,
}

impl Totals {
    /// All of them.
    pub(super) fn json(&self, layer: Layer, cpu: Option<Cpu>, check: Option<Check>) -> Json {
        Json {
            layer,
            cpu: cpu.map(|cpu| cpu.to_string()),
            bytes: self.bytes,
            packets: self.packets,
            events: self.events,
            conditional_branches: self.conditional,
            indirect_branches: self.indirect,
            instructions: self.instructions,
            blocks: self.blocks,
            errors: self.errors.clone(),
            advice: self.advice(),
            hash: self.hash.map(hash_text),
            tsc_first: self.tsc_first,
            tsc_last: self.tsc_last,
            check,
        }
    }

    /// Marks the errors that an erratum explains that was not allowed for.
    pub(super) fn explain(&mut self, trace: &[u8], config: Config<'_>) {
        bdm70::mark(trace, config, &mut self.errors);
    }

    /// What to do about the errors, each advice once.
    fn advice(&self) -> Vec<&'static str> {
        let mut all = vec![];
        for advice in self.errors.iter().map(|error| error.advice) {
            if !all.contains(&advice) {
                all.push(advice);
            }
        }
        all
    }

    /// All of them, a line each; of the errors the first ones.
    pub(super) fn print(&self, layer: Layer, out: &mut dyn Write) -> io::Result<()> {
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
        for advice in self.advice() {
            writeln!(out, "advice: {advice}")?;
        }
        Ok(())
    }
}

/// A hash as the totals have it.
#[must_use]
pub fn hash_text(hash: AddressHash) -> String {
    format!("{:#018x}", hash.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_advice_is_given_once_in_the_order_of_the_errors() {
        let problem =
            |advice| Problem { offset: 0, address: None, text: String::new(), erratum: None, advice };
        let errors = ["first", "second", "first", "second"].map(problem).to_vec();
        assert_eq!(Totals { errors, ..Totals::default() }.advice(), ["first", "second"]);
        assert!(Totals::default().advice().is_empty());
    }
}
