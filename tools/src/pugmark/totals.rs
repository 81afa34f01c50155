//! Writes a layer's results for a trace as text or as JSON.

use super::{bdm70, check::Check, decode::Layer};
use pugmark_decoder_core::{Error, ErrorKind, config::Config, errata::Cpu, hash::AddressHash};
use serde::Serialize;
use std::io::{self, Write};

/// The maximum number of errors in the text; only the first ones matter to a reader.
const SHOWN: usize = 100;

/// A layer's results for a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// The trace's length in bytes.
    pub bytes: u64,
    /// Packets, or branch records.
    pub packets: u64,
    /// Events that the layer returned.
    pub events: u64,
    /// Conditional branches that the query layer returned.
    pub conditional: u64,
    /// Indirect branches that the query layer returned.
    pub indirect: u64,
    /// Instructions.
    pub instructions: u64,
    /// Blocks.
    pub blocks: u64,
    /// The errors. After each error the layer continued at the next PSB, or with the next record.
    pub errors: Vec<TraceError>,
    /// Places where the processor, or who stored the trace, lost packets: OVF packets.
    pub overflows: u64,
    /// The offset of the first one.
    pub first_overflow: Option<u64>,
    /// The hash of the instructions' addresses, if it was requested and the layer returns instructions.
    pub hash: Option<AddressHash>,
    /// The value of the first TSC packet.
    pub tsc_first: Option<u64>,
    /// The value of the last TSC packet.
    pub tsc_last: Option<u64>,
}

/// An error in a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceError {
    /// The offset of the packet or record.
    pub offset: u64,
    /// The address of the instruction, if the error is about one.
    pub address: Option<u64>,
    /// The error as text.
    pub text: String,
    /// The erratum of the processor that explains the error, if the configuration does not work around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erratum: Option<&'static str>,
    /// The advice to the user about the error.
    #[serde(skip)]
    pub advice: &'static str,
}

/// Returns the advice to the user about an error.
fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NoMemory { .. } => "give the code at these addresses with --image, --elf or --raw",
        _ if kind.ip().is_some() => {
            "check that the code is the code that was traced, at the same addresses, and that --cpu names the traced \
             processor"
        }
        _ => {
            "the trace is damaged there, or --cpu does not name the traced processor, whose errata could explain it"
        }
    }
}

impl From<Error> for TraceError {
    fn from(error: Error) -> Self {
        let Error { offset, kind, .. } = error;
        Self { offset, address: kind.ip(), text: kind.to_string(), erratum: None, advice: advice(kind) }
    }
}

impl TraceError {
    /// Returns an error in a branch record.
    pub(super) fn in_records(error: Error) -> Self {
        let advice = "check that the code is the code that was traced, at the same addresses, and that --source names \
             the layout of the records";
        Self { advice, ..error.into() }
    }
}

/// The totals as one JSON object.
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
    errors: Vec<TraceError>,
    overflows: u64,
    first_overflow: Option<u64>,
    /// The advice to the user about the errors.
    advice: Vec<&'static str>,
    hash: Option<String>,
    tsc_first: Option<u64>,
    tsc_last: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Check>,
}

impl Totals {
    /// Returns all totals.
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
            overflows: self.overflows,
            first_overflow: self.first_overflow,
            advice: self.advice(),
            hash: self.hash.map(hash_text),
            tsc_first: self.tsc_first,
            tsc_last: self.tsc_last,
            check,
        }
    }

    /// Marks the errors that are explained by an erratum without a workaround in the configuration.
    pub(super) fn explain(&mut self, trace: &[u8], config: Config<'_>) {
        bdm70::mark(trace, config, &mut self.errors);
    }

    /// Returns the advice about the errors, each text once.
    fn advice(&self) -> Vec<&'static str> {
        let mut all = vec![];
        for advice in self.errors.iter().map(|error| error.advice) {
            if !all.contains(&advice) {
                all.push(advice);
            }
        }
        all
    }

    /// Writes all totals, one line each, and the first errors.
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
            Layer::Insns | Layer::Blocks | Layer::Edges => {
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
        if let Some(first) = self.first_overflow {
            writeln!(out, "overflows     {}, first at {first:#x}: packets are lost there", self.overflows)?;
        }
        writeln!(out, "errors        {}", self.errors.len())?;
        for error in self.errors.iter().take(SHOWN) {
            writeln!(out, "  {:#x}: {}", error.offset, error.text)?;
        }
        if let Some(more) = self.errors.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            writeln!(out, "  and {more} more; --json prints them all")?;
        }
        for advice in self.advice() {
            writeln!(out, "advice: {advice}")?;
        }
        Ok(())
    }
}

/// Returns a hash in the form that the totals show.
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
            |advice| TraceError { offset: 0, address: None, text: String::new(), erratum: None, advice };
        let errors = ["first", "second", "first", "second"].map(problem).to_vec();
        assert_eq!(Totals { errors, ..Totals::default() }.advice(), ["first", "second"]);
        assert!(Totals::default().advice().is_empty());
    }

    #[test]
    fn each_layer_has_its_lines() {
        let mut hash = AddressHash::new();
        hash.add(0x1000);
        let totals = Totals {
            bytes: 1,
            packets: 2,
            events: 3,
            conditional: 4,
            indirect: 5,
            instructions: 6,
            blocks: 7,
            hash: Some(hash),
            tsc_first: Some(0x10),
            tsc_last: Some(0x20),
            ..Totals::default()
        };
        let insns = format!("events=3 instructions=6 hash={}", hash_text(hash));
        for (layer, own) in [
            (Layer::Packets, ""),
            (Layer::Events, "events=3"),
            (Layer::Query, "events=3 conditional=4 indirect=5"),
            (Layer::Insns, &insns),
            (Layer::Blocks, &insns.replace(" hash", " blocks=7 hash")),
            (Layer::Edges, &insns),
        ] {
            let mut text = vec![];
            totals.print(layer, &mut text).unwrap();
            let all = format!("bytes=1 packets=2 {own} tsc_first=0x10 tsc_last=0x20 errors=0");
            let line = |word: &str| {
                let (name, value) = word.split_once('=').unwrap();
                format!("{:<13} {value}\n", name.replace('_', " "))
            };
            let expected: String = all.split_whitespace().map(line).collect();
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{layer:?}");
        }
    }
}
