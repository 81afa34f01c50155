//! The columns of `pugmark script`'s lines, laid out as `perf script` has them.
//!
//! Source: Linux, tools/perf/Documentation/perf-script.txt, "-F", and tools/perf/builtin-script.c.

use super::super::{
    disassembly, recording::IndexedPart, report::UnnamedFunctions, taken_branches::TakenBranch,
    visitors::Unit,
};
use crate::symbols::{NamedPlace, SourceLine, SourcePlace, TracedSymbols};
use clap::ValueEnum;
use pugmark_decoder_core::image::Image;
use std::fmt::{self, Write};

/// The name shown for code without a symbol.
const UNKNOWN: &str = "[unknown]";

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

/// The columns that all lines of a lane have in common.
#[derive(Clone, Copy)]
pub(super) struct ScriptColumns<'a> {
    pub(super) fields: &'a [ScriptField],
    pub(super) symbols: &'a TracedSymbols,
    pub(super) unnamed: &'a UnnamedFunctions,
    pub(super) part: Option<&'a IndexedPart>,
    pub(super) image: Image<'a>,
    pub(super) unit: Unit,
}

/// The thread and the time of a line, which the next line mostly has, too.
#[derive(Default)]
pub(super) struct LineBegin {
    text: String,
    /// The time, and the place of the thread's description in memory.
    of: Option<(When, Option<*const IndexedPart>)>,
}

impl LineBegin {
    /// Returns the first part of a line.
    #[inline]
    pub(super) fn of(&mut self, columns: &ScriptColumns<'_>, when: When) -> &str {
        let of = Some((when, columns.part.map(std::ptr::from_ref)));
        if self.of != of {
            self.of = of;
            self.text.clear();
            columns.begin(when, &mut self.text);
        }
        &self.text
    }
}

impl ScriptColumns<'_> {
    pub(super) fn has(&self, field: ScriptField) -> bool {
        self.fields.contains(&field)
    }

    /// Puts down the thread and the time.
    pub(super) fn begin(&self, when: When, text: &mut String) {
        let part = |number: fn(&IndexedPart) -> Option<i32>| self.part.and_then(number).unwrap_or(-1);
        let (pid, tid) = (part(|part| part.pid), part(|part| part.tid));
        if self.has(ScriptField::Comm) {
            let comm = self.part.and_then(|part| part.comm.as_deref());
            put(text, format_args!("{:>16} ", comm.unwrap_or(":-1")));
        }
        match (self.has(ScriptField::Pid), self.has(ScriptField::Tid)) {
            (true, true) => put(text, format_args!("{pid:>7}/{tid:<7} ")),
            (true, false) => put(text, format_args!("{pid:>7} ")),
            (false, true) => put(text, format_args!("{tid:>7} ")),
            (false, false) => {}
        }
        if self.has(ScriptField::Time) {
            match self.unit {
                Unit::Nanoseconds => {
                    let (seconds, rest) = (when.at / 1_000_000_000, when.at % 1_000_000_000);
                    number(text, seconds, 5, b' ');
                    text.push('.');
                    number(text, rest, 9, b'0');
                }
                Unit::Ticks | Unit::Instructions => number(text, when.at, 15, b' '),
            }
            text.push_str(": ");
        }
        if self.has(ScriptField::Tsc) {
            match when.tsc {
                Some(tsc) => put(text, format_args!("tsc {tsc:#x} ")),
                None => text.push_str("tsc ? "),
            }
        }
    }

    /// Puts down an instruction, without the thread and the time.
    pub(super) fn insn(&self, ip: u64, place: &NamedPlace<'_>, text: &mut String) {
        self.place(ip, place, text);
        self.end(Some(ip), text);
    }

    /// Puts down a transfer, without the thread and the time.
    pub(super) fn transfer(&self, transfer: TakenBranch, place: &NamedPlace<'_>, text: &mut String) {
        let TakenBranch { from, to, flags, .. } = transfer;
        if self.has(ScriptField::Flags) {
            put(text, format_args!("  {flags:<21} "));
        }
        self.place(from.unwrap_or(0), place, text);
        if self.has(ScriptField::Addr) {
            put(text, format_args!(" => {:16x}", to.unwrap_or(0)));
            self.name(&to.map(|to| self.symbols.find(to)).unwrap_or_default(), text);
        }
        self.end(from, text);
    }

    /// Puts down an address, with its function and file.
    fn place(&self, ip: u64, place: &NamedPlace<'_>, text: &mut String) {
        if self.has(ScriptField::Ip) {
            put(text, format_args!(" {ip:16x}"));
        }
        self.name(place, text);
    }

    fn name(&self, place: &NamedPlace<'_>, text: &mut String) {
        match place.function {
            Some((name, offset)) if self.has(ScriptField::Symoff) => {
                put(text, format_args!(" {name}+{offset:#x}"));
            }
            Some((name, _)) if self.has(ScriptField::Sym) => put(text, format_args!(" {name}")),
            None if self.has(ScriptField::Sym) || self.has(ScriptField::Symoff) => {
                put(text, format_args!(" {UNKNOWN}"));
            }
            _ => {}
        }
        if self.has(ScriptField::Dso) {
            put(text, format_args!(" ({})", place.object.unwrap_or(UNKNOWN)));
        }
    }

    /// Puts down the instruction and the rest of the line, and the lines of source below it.
    fn end(&self, ip: Option<u64>, text: &mut String) {
        if let Some(ip) = ip.filter(|_| self.has(ScriptField::Insn) || self.has(ScriptField::Disasm)) {
            self.instruction(ip, text);
        }
        text.push('\n');
        if let Some(ip) = ip.filter(|_| self.has(ScriptField::Srcline) || self.has(ScriptField::Inline)) {
            source(&self.symbols.source(ip), self.has(ScriptField::Inline), text);
        }
    }

    /// Puts down where a function was called, and the rest of the line.
    pub(super) fn end_of_call(&self, from: Option<u64>, text: &mut String) {
        let wanted = self.has(ScriptField::Srcline) || self.has(ScriptField::Inline);
        if let Some(line) = from.filter(|_| wanted).and_then(|from| self.symbols.line(from)) {
            put(text, format_args!("  called at {}", line.short()));
        }
        text.push('\n');
    }

    fn instruction(&self, ip: u64, text: &mut String) {
        let (insn, bytes) = disassembly::instruction(self.image, ip);
        if insn.is_invalid() {
            return text.push_str(" (unknown instruction)");
        }
        let bytes = bytes.get(..insn.len()).unwrap_or_default();
        if self.has(ScriptField::Insn) {
            text.push_str(" insn:");
            bytes.iter().for_each(|byte| put(text, format_args!(" {byte:02x}")));
        }
        if self.has(ScriptField::Disasm) {
            text.push_str("  ");
            disassembly::put(&insn, text);
        }
    }
}

/// Adds a number in at least `width` characters, at most 20, several times as fast as `write!`.
fn number(text: &mut String, mut number: u64, width: usize, fill: u8) {
    let mut digits = [fill; 20];
    let mut from = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        (number, from) = (number / 10, from - 1);
        if number == 0 {
            break;
        }
    }
    let from = from.min(digits.len().saturating_sub(width));
    text.push_str(std::str::from_utf8(&digits[from..]).unwrap_or_default());
}

/// Adds to a text.
fn put(text: &mut String, more: fmt::Arguments<'_>) {
    // A String takes everything.
    let _ = text.write_fmt(more);
}

/// Puts down where an instruction is in the source, as `perf script` and, for what it was put into, as `addr2line` do.
fn source(places: &[SourcePlace], inlined: bool, text: &mut String) {
    let line = |place: &SourcePlace| place.line.as_ref().map_or_else(|| "??:0".into(), SourceLine::short);
    let Some((first, others)) = places.split_first() else { return };
    put(text, format_args!("  {}\n", line(first)));
    for place in others.iter().filter(|_| inlined) {
        let name = place.function.as_deref().unwrap_or("??");
        put(text, format_args!("  (inlined by) {name} at {}\n", line(place)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_filled_up_to_their_width() {
        for at in [0, 7, 10, 99_999, 100_000, 123_456_789, 1_000_000_000, u64::MAX] {
            let mut text = String::new();
            number(&mut text, at, 5, b' ');
            number(&mut text, at, 9, b'0');
            number(&mut text, at, 15, b' ');
            assert_eq!(text, format!("{at:>5}{at:09}{at:>15}"));
        }
    }

    static UNNAMED: UnnamedFunctions = UnnamedFunctions::NONE;

    #[test]
    fn lines_of_another_time_or_thread_begin_otherwise() {
        let (symbols, fields) = (TracedSymbols::default(), [ScriptField::Tid, ScriptField::Time]);
        let parts = [1, 2].map(|tid| IndexedPart { tid: Some(tid), ..IndexedPart::default() });
        let columns = |part| ScriptColumns {
            fields: &fields,
            symbols: &symbols,
            unnamed: &UNNAMED,
            part,
            image: Image::new(&[]),
            unit: Unit::Ticks,
        };
        let mut begin = LineBegin::default();
        for (part, at) in [(None, 1), (Some(0), 1), (Some(0), 1), (Some(1), 1), (Some(1), 2), (None, 2)] {
            let columns = columns(part.map(|part: usize| &parts[part]));
            let when = When { at, tsc: None };
            let mut expected = String::new();
            columns.begin(when, &mut expected);
            assert_eq!(begin.of(&columns, when), expected);
        }
    }
}
