//! Writes the tables as Rust source.

use crate::{
    table::{EventRow, NamedCode},
    text::Descriptions,
};
use std::{collections::HashMap, fmt::Write};

/// Rust source to which tables are added.
#[derive(Default)]
pub(crate) struct RustSource {
    /// All names and descriptions, each once, consecutively.
    pool: String,
    packed: HashMap<String, u32>,
    tables: String,
}

impl RustSource {
    /// Adds a table. An error begins with the line of the entry.
    pub(crate) fn table(
        &mut self,
        name: &str,
        events: &[EventRow],
        text: &Descriptions<'_>,
    ) -> Result<(), String> {
        let mut rows = String::new();
        for (index, event) in events.iter().enumerate() {
            let masks = format!("{name}_{index}");
            if !event.masks.is_empty() {
                let list = event.masks.iter().map(|mask| self.mask(event, mask, text));
                let list = list.collect::<Result<Vec<_>, _>>()?.concat();
                _ = writeln!(self.tables, "static {masks}: [UnitMask; {}] = [{list}];", event.masks.len());
            }
            let groups = event.masks.iter().map(|mask| mask.marks.group + 1).max().unwrap_or(0);
            let masks = if event.masks.is_empty() { "&[]".to_owned() } else { format!("&{masks}") };
            let inner = self.entry(&event.entry, text.description(&event.entry.name, ""))?;
            _ = write!(rows, "Event {{ {inner}, groups: {groups}, masks: {masks} }},");
        }
        let by_name = by_name(events);
        _ = writeln!(self.tables, "pub(crate) static {name}: Table = Table {{");
        _ = writeln!(self.tables, "events: &[{rows}], by_name: &{by_name:?} }};");
        Ok(())
    }

    pub(crate) fn finish(self) -> String {
        format!("pub(crate) static POOL: &str = {:?};\n{}", self.pool, self.tables)
    }

    fn mask(
        &mut self,
        event: &EventRow,
        mask: &NamedCode,
        text: &Descriptions<'_>,
    ) -> Result<String, String> {
        let inner = self.entry(mask, text.description(&event.entry.name, &mask.name))?;
        Ok(format!("UnitMask {{ {inner}, group: {} }},", mask.marks.group))
    }

    fn entry(&mut self, entry: &NamedCode, words: Option<String>) -> Result<String, String> {
        let NamedCode { line, name, code, marks } = entry;
        let words = words.ok_or_else(|| format!("{line}: text.tsv has no words for {name}"))?;
        let bound =
            |letter: Option<char>| letter.map_or("None".to_owned(), |l| format!("Some(Revision::{l})"));
        let flags = marks.flags.iter().map(|flag| format!(".union(Flags::{flag})")).collect::<String>();
        Ok(format!(
            "name: Text({:#x}), words: Text({:#x}), code: {code:#x}, flags: Flags::empty(){flags}, revisions: ({}, {})",
            self.pack(name).map_err(|error| format!("{line}: {error}"))?,
            self.pack(&words).map_err(|error| format!("{line}: {error}"))?,
            bound(marks.revisions.0),
            bound(marks.revisions.1),
        ))
    }

    /// Returns the place of a text in the pool, with its length in the low eight bits.
    fn pack(&mut self, text: &str) -> Result<u32, String> {
        if let Some(&packed) = self.packed.get(text) {
            return Ok(packed);
        }
        let length = u8::try_from(text.len()).map_err(|_| format!("{text:?} is too long"))?;
        let at = u32::try_from(self.pool.len()).ok().filter(|&at| at < 1 << 24).ok_or("the pool is full")?;
        self.pool.push_str(text);
        let packed = at << 8 | u32::from(length);
        self.packed.insert(text.to_owned(), packed);
        Ok(packed)
    }
}

/// Returns the indices of the events, sorted by name; equal names stay in the table's order.
fn by_name(events: &[EventRow]) -> Vec<usize> {
    let mut indices = (0..events.len()).collect::<Vec<_>>();
    indices.sort_by_key(|&index| events[index].entry.name.to_ascii_uppercase());
    indices
}
