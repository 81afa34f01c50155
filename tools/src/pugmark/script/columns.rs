//! The columns of `pugmark script`'s lines, laid out as `perf script` has them.
//!
//! Source: Linux, tools/perf/Documentation/perf-script.txt, "-F", and tools/perf/builtin-script.c.

use super::super::{
    recording::IndexedPart,
    symbols::{NamedPlace, SourceLine, SourcePlace, TracedSymbols},
    walk::Unit,
};
use clap::ValueEnum;
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use pugmark_decoder_core::image::{Asid, Image};
use std::io::{self, Write};

/// What has no name.
const UNKNOWN: &str = "[unknown]";
/// The size of the longest instruction.
const MAX_LEN: usize = pugmark_decoder_core::insn::MAX_LEN;

/// A column of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ScriptField {
    Comm,
    Pid,
    Tid,
    Time,
    Tsc,
    Flags,
    Callindent,
    Ip,
    Sym,
    Symoff,
    Dso,
    Addr,
    Insn,
    Disasm,
    Srcline,
    Inline,
}

/// When something was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct When {
    /// In the unit of the trace's clock.
    pub(super) at: u64,
    /// The time-stamp counter; `None` if the trace says nothing of it.
    pub(super) tsc: Option<u64>,
}

/// What the lines of a trace have in common.
pub(super) struct ScriptColumns<'a> {
    pub(super) fields: &'a [ScriptField],
    pub(super) symbols: &'a TracedSymbols,
    pub(super) part: Option<&'a IndexedPart>,
    pub(super) image: Image<'a>,
    pub(super) unit: Unit,
}

impl ScriptColumns<'_> {
    pub(super) fn has(&self, field: ScriptField) -> bool {
        self.fields.contains(&field)
    }

    /// Writes the thread and the time.
    pub(super) fn begin(&self, when: When, out: &mut dyn Write) -> io::Result<()> {
        let part = |number: fn(&IndexedPart) -> Option<i32>| self.part.and_then(number).unwrap_or(-1);
        if self.has(ScriptField::Comm) {
            let comm = self.part.and_then(|part| part.comm.as_deref());
            write!(out, "{:>16} ", comm.unwrap_or(":-1"))?;
        }
        match (self.has(ScriptField::Pid), self.has(ScriptField::Tid)) {
            (true, true) => write!(out, "{:>7}/{:<7} ", part(|part| part.pid), part(|part| part.tid))?,
            (true, false) => write!(out, "{:>7} ", part(|part| part.pid))?,
            (false, true) => write!(out, "{:>7} ", part(|part| part.tid))?,
            (false, false) => {}
        }
        if self.has(ScriptField::Time) {
            match self.unit {
                Unit::Nanoseconds => {
                    write!(out, "{:>5}.{:09}: ", when.at / 1_000_000_000, when.at % 1_000_000_000)?
                }
                Unit::Ticks | Unit::Instructions => write!(out, "{:>15}: ", when.at)?,
            }
        }
        if self.has(ScriptField::Tsc) {
            match when.tsc {
                Some(tsc) => write!(out, "tsc {tsc:#x} ")?,
                None => write!(out, "tsc ? ")?,
            }
        }
        Ok(())
    }

    /// Writes an address, with its function and file.
    pub(super) fn place(&self, ip: u64, place: &NamedPlace<'_>, out: &mut dyn Write) -> io::Result<()> {
        if self.has(ScriptField::Ip) {
            write!(out, " {ip:16x}")?;
        }
        self.name(place, out)
    }

    /// Writes where a branch went; `None` if that was not traced.
    pub(super) fn target(&self, to: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
        if self.has(ScriptField::Addr) {
            write!(out, " => {:16x}", to.unwrap_or(0))?;
            self.name(&to.map(|to| self.symbols.find(to)).unwrap_or_default(), out)?;
        }
        Ok(())
    }

    fn name(&self, place: &NamedPlace<'_>, out: &mut dyn Write) -> io::Result<()> {
        match place.function {
            Some((name, offset)) if self.has(ScriptField::Symoff) => write!(out, " {name}+{offset:#x}")?,
            Some((name, _)) if self.has(ScriptField::Sym) => write!(out, " {name}")?,
            None if self.has(ScriptField::Sym) || self.has(ScriptField::Symoff) => write!(out, " {UNKNOWN}")?,
            _ => {}
        }
        if self.has(ScriptField::Dso) {
            write!(out, " ({})", place.object.unwrap_or(UNKNOWN))?;
        }
        Ok(())
    }

    /// Writes the instruction and the rest of the line, and the lines of source below it.
    pub(super) fn end(&self, ip: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
        if let Some(ip) = ip.filter(|_| self.has(ScriptField::Insn) || self.has(ScriptField::Disasm)) {
            self.instruction(ip, out)?;
        }
        writeln!(out)?;
        match ip.filter(|_| self.has(ScriptField::Srcline) || self.has(ScriptField::Inline)) {
            Some(ip) => source(&self.symbols.source(ip), self.has(ScriptField::Inline), out),
            None => Ok(()),
        }
    }

    /// Writes where a function was called, and the rest of the line.
    pub(super) fn end_of_call(&self, from: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
        let wanted = self.has(ScriptField::Srcline) || self.has(ScriptField::Inline);
        match from.filter(|_| wanted).and_then(|from| self.symbols.line(from)) {
            Some(line) => writeln!(out, "  called at {}", line.short()),
            None => writeln!(out),
        }
    }

    fn instruction(&self, ip: u64, out: &mut dyn Write) -> io::Result<()> {
        let mut bytes = [0; MAX_LEN];
        let length = self.image.read(ip, Asid::default(), &mut bytes);
        let bytes = bytes.get(..length).unwrap_or_default();
        let insn = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
        if insn.is_invalid() {
            return write!(out, " (unknown instruction)");
        }
        let bytes = bytes.get(..insn.len()).unwrap_or_default();
        if self.has(ScriptField::Insn) {
            write!(out, " insn:")?;
            bytes.iter().try_for_each(|byte| write!(out, " {byte:02x}"))?;
        }
        if self.has(ScriptField::Disasm) {
            let mut text = String::new();
            let mut formatter = IntelFormatter::new();
            formatter.options_mut().set_hex_prefix("0x");
            formatter.options_mut().set_hex_suffix("");
            formatter.options_mut().set_uppercase_hex(false);
            formatter.options_mut().set_space_after_operand_separator(true);
            formatter.options_mut().set_branch_leading_zeros(false);
            formatter.format(&insn, &mut text);
            write!(out, "  {text}")?;
        }
        Ok(())
    }
}

/// Writes where an instruction is in the source, as `perf script` and, for what it was put into, as `addr2line` do.
fn source(places: &[SourcePlace], inlined: bool, out: &mut dyn Write) -> io::Result<()> {
    let line = |place: &SourcePlace| place.line.as_ref().map_or_else(|| "??:0".into(), SourceLine::short);
    let Some((first, others)) = places.split_first() else { return Ok(()) };
    writeln!(out, "  {}", line(first))?;
    for place in others.iter().filter(|_| inlined) {
        writeln!(out, "  (inlined by) {} at {}", place.function.as_deref().unwrap_or("??"), line(place))?;
    }
    Ok(())
}
