//! Functions that a runtime has compiled while it ran, with their code and lines, as it writes them to a jitdump.
//!
//! Source: Linux, tools/perf/Documentation/jitdump-specification.txt.

use super::lines::SourceLine;
use super::perf_map::{JitSymbols, object};
use super::table::PaintedFunctions;
use crate::text::printable;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The first four bytes of a file: `JiTD` as a little-endian number.
const MAGIC: &[u8] = b"DTiJ";
/// The place of the header's size and of the process in it, and the least size.
const SIZE_AT: usize = 8;
const PID_AT: usize = 20;
const HEADER: usize = 40;
/// The size of what each record begins with.
const PREFIX: usize = 16;
/// The maximum number of lines: each may name a file of its own.
const MOST_LINES: usize = 1 << 20;

/// The kinds of records.
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const CODE_DEBUG_INFO: u32 = 2;

/// The contents of a jitdump.
#[derive(Clone, Debug, Default)]
pub struct JitDump {
    /// The functions.
    pub symbols: JitSymbols,
    /// Their lines, by address.
    lines: BTreeMap<u64, SourceLine>,
    /// The offset of the first record that cannot be read, if there is one.
    pub cut: Option<usize>,
}

impl JitDump {
    /// Reads a file; `None` if it is none. Of one that is damaged, what comes before is read.
    #[must_use]
    pub fn parse(file: &[u8]) -> Option<Self> {
        let number = |at| Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?));
        if !file.starts_with(MAGIC) || file.len() < HEADER {
            return None;
        }
        let (mut at, pid) = (number(SIZE_AT)? as usize, number(PID_AT)?.cast_signed());
        let (mut functions, mut found) = (PaintedFunctions::default(), Self::default());
        let mut files = FxHashSet::default();
        while at < file.len() && !functions.is_full() {
            let size = number(at.saturating_add(4)).map_or(0, |size| size as usize);
            let body = at.checked_add(size).and_then(|end| file.get(at.saturating_add(PREFIX)..end));
            let (Some(kind), Some(body)) = (number(at), body.filter(|_| size >= PREFIX)) else {
                found.cut = Some(at);
                break;
            };
            let read = match kind {
                CODE_LOAD => load(body, &mut functions),
                CODE_MOVE => moved(body, &mut functions),
                CODE_DEBUG_INFO => found.add_lines(body, &mut files),
                _ => Some(()),
            };
            if read.is_none() {
                found.cut.get_or_insert(at);
            }
            at += size;
        }
        found.symbols = JitSymbols { table: functions.into_table(), object: object(pid) };
        Some(found)
    }

    /// Returns the line of source at an address.
    pub(super) fn line(&self, address: u64) -> Option<&SourceLine> {
        let begin = address.wrapping_sub(self.symbols.find(address)?.1);
        self.lines.range(begin..=address).next_back().map(|(_, line)| line)
    }

    /// Reads the lines of a function that is loaded next.
    fn add_lines(&mut self, body: &[u8], files: &mut FxHashSet<Rc<str>>) -> Option<()> {
        let count = long(body, 8)?;
        let mut rest = body.get(16..)?;
        for _ in 0..count {
            if self.lines.len() >= MOST_LINES {
                return None;
            }
            let (address, line) = (long(rest, 0)?, u32::from_le_bytes(*rest.get(8..)?.first_chunk()?));
            let name = text(rest.get(16..)?)?;
            rest = &rest[16 + name.len() + 1..];
            let name = String::from_utf8_lossy(name);
            let name = printable(&name);
            let file = files.get(&*name).cloned().unwrap_or_else(|| Rc::from(&*name));
            files.insert(file.clone());
            self.lines.insert(address, SourceLine { file, line });
        }
        Some(())
    }
}

/// Reads that a function is compiled.
fn load(body: &[u8], functions: &mut PaintedFunctions) -> Option<()> {
    let (address, size) = (long(body, 16)?, long(body, 24)?);
    let name = text(body.get(40..)?)?;
    functions.add(address..address.saturating_add(size), &String::from_utf8_lossy(name));
    Some(())
}

/// Reads that a function is moved.
fn moved(body: &[u8], functions: &mut PaintedFunctions) -> Option<()> {
    let (from, to, size) = (long(body, 16)?, long(body, 24)?, long(body, 32)?);
    functions.move_to(from..from.saturating_add(size), to);
    Some(())
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the bytes before the first zero.
fn text(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(..bytes.iter().position(|byte| *byte == 0)?)
}

#[cfg(test)]
pub(super) mod made {
    //! Makes files for tests.

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let head = [kind, 16 + body.len() as u32, 0, 0].map(u32::to_le_bytes).concat();
        [head, body.to_vec()].concat()
    }

    pub(in crate::symbols) fn load(address: u64, code: &[u8], name: &str) -> Vec<u8> {
        let ids = [7_u32, 7].map(u32::to_le_bytes).concat();
        let longs = [address, address, code.len() as u64, 1].map(u64::to_le_bytes).concat();
        record(0, &[&ids[..], &longs, name.as_bytes(), &[0], code].concat())
    }

    pub(in crate::symbols) fn moved(from: u64, to: u64, size: u64) -> Vec<u8> {
        let ids = [7_u32, 7].map(u32::to_le_bytes).concat();
        record(1, &[ids, [from, from, to, size, 1].map(u64::to_le_bytes).concat()].concat())
    }

    pub(in crate::symbols) fn lines(address: u64, lines: &[(u64, u32, &str)]) -> Vec<u8> {
        let mut body = [address, lines.len() as u64].map(u64::to_le_bytes).concat();
        for (at, line, file) in lines {
            body.extend(
                [&at.to_le_bytes()[..], &line.to_le_bytes(), &[0; 4], file.as_bytes(), &[0]].concat(),
            );
        }
        record(2, &body)
    }

    pub(in crate::symbols) fn dump(records: &[Vec<u8>]) -> Vec<u8> {
        let head = [0x4a69_5444_u32, 1, 40, 62, 0, 7, 0, 0, 0, 0].map(u32::to_le_bytes).concat();
        [head, records.concat()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_names_functions_with_their_lines_where_they_were_last() {
        let lines = made::lines(0x1000, &[(0x1000, 3, "a.js"), (0x1004, 5, "a.js")]);
        let records = [
            lines,
            made::load(0x1000, &[0x90; 16], "first"),
            made::load(0x2000, &[0x90; 16], "second"),
            made::load(0x2008, &[0x90; 4], "third"),
            made::moved(0x2000, 0x3000, 16),
        ];
        let file = made::dump(&records);
        let dump = JitDump::parse(&file).unwrap();
        let name = |at| dump.symbols.find(at);
        assert_eq!([name(0x100f), name(0x1010)], [Some(("first", 15)), None]);
        assert_eq!(
            [name(0x2000), name(0x2009), name(0x3001)],
            [None, Some(("third", 1)), Some(("second", 1))]
        );
        let line = |at| dump.line(at).map(ToString::to_string);
        assert_eq!(
            [line(0x1003), line(0x100f), line(0x3000)],
            [Some("a.js:3".into()), Some("a.js:5".into()), None]
        );
        assert_eq!((dump.cut, &*dump.symbols.object), (None, "[JIT] tid 7"));
        // Of a file that is cut, what comes before is read.
        for end in 0..file.len() {
            let cut = JitDump::parse(&file[..end]);
            assert_eq!(cut.is_some(), end >= HEADER, "{end}");
            let bounds = [HEADER, HEADER + records[0].len(), HEADER + records[..2].concat().len()];
            if let Some(cut) = cut.filter(|_| end > HEADER && end <= bounds[2]) {
                let place = bounds.iter().rev().find(|begin| **begin <= end).copied();
                let expected = place.filter(|begin| *begin != end);
                assert_eq!(
                    (cut.cut, cut.symbols.find(0x1000).is_some()),
                    (expected, end == bounds[2]),
                    "{end}"
                );
            }
        }
        assert!(JitDump::parse(b"\x7fELF").is_none());
    }
}
