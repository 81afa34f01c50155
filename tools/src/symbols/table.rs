//! A table of functions by address, and the names in it.

use super::names::shown;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Range;

/// The most functions of one file. Large browsers have fewer; damaged files must not fill the memory.
pub(super) const MOST_FUNCTIONS: usize = 1 << 21;

/// Functions by address; none overlaps another. Names are made readable when they are asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct FunctionTable {
    /// In the order of their addresses.
    parts: Vec<TablePart>,
    names: Vec<TableName>,
    /// The names, as the file has them.
    text: String,
}

/// A function, or a part of it: another function may lie within it and cut it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TablePart {
    pub(super) from: u64,
    pub(super) end: u64,
    /// Where the function begins.
    pub(super) begin: u64,
    /// The number of its name.
    pub(super) name: u32,
}

/// Where a name is in the text, and how it is shown.
#[derive(Clone, Debug)]
struct TableName {
    from: u32,
    len: u32,
    shown: OnceCell<Box<str>>,
}

impl FunctionTable {
    /// Makes a table with a text that names are parts of.
    pub(super) fn of_text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Makes room for this many more functions.
    pub(super) fn reserve(&mut self, count: usize) {
        self.parts.reserve_exact(count);
        self.names.reserve_exact(count);
    }

    /// Adds a name. Returns its number; `None` if the table is full.
    pub(super) fn name(&mut self, name: &str) -> Option<u32> {
        let from = self.text.len();
        u32::try_from(from + name.len()).ok()?;
        self.text.push_str(name);
        self.name_at(from..from + name.len())
    }

    /// Adds a name that is a part of the text.
    pub(super) fn name_at(&mut self, place: Range<usize>) -> Option<u32> {
        let (from, len) = (u32::try_from(place.start).ok()?, u32::try_from(place.len()).ok()?);
        let number = u32::try_from(self.names.len()).ok()?;
        self.names.push(TableName { from, len, shown: OnceCell::new() });
        Some(number)
    }

    /// Adds a part after all others.
    pub(super) fn push(&mut self, part: TablePart) {
        self.parts.push(part);
    }

    /// Returns the parts, in the order of their addresses.
    pub(super) fn parts(&self) -> impl Iterator<Item = (TablePart, &str)> {
        self.parts.iter().map(|part| (*part, self.name_of(*part)))
    }

    /// Finds the number of the part at an address.
    pub(super) fn number(&self, address: u64) -> Option<usize> {
        let number = self.parts.partition_point(|part| part.from <= address).checked_sub(1)?;
        (address < self.parts.get(number)?.end).then_some(number)
    }

    /// Returns the end of the last part that ends at an address or before it; 0 if none does.
    pub(super) fn end_before(&self, address: u64) -> u64 {
        let after = self.parts.partition_point(|part| part.from <= address);
        let before = self.parts[..after].iter().rev().find(|part| part.end <= address);
        before.map_or(0, |part| part.end)
    }

    /// Finds the function at an address, and how far the address is in it.
    pub(super) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let part = self.parts[self.number(address)?];
        Some((self.name_of(part), address.wrapping_sub(part.begin)))
    }

    fn name_of(&self, part: TablePart) -> &str {
        let Some(TableName { from, len, shown: known }) = self.names.get(part.name as usize) else {
            return "";
        };
        let raw = self.text.get(*from as usize..*from as usize + *len as usize).unwrap_or_default();
        match known.get() {
            Some(known) => known,
            None => match shown(raw) {
                std::borrow::Cow::Borrowed(name) => name,
                std::borrow::Cow::Owned(name) => known.get_or_init(|| name.into()),
            },
        }
    }
}

/// Functions that are added one after the other, each in the place of what was there before.
#[derive(Clone, Debug, Default)]
pub(super) struct PaintedFunctions {
    /// The end, where the function begins, and its name, by where each part begins.
    places: BTreeMap<u64, (u64, u64, u32)>,
    names: FunctionTable,
}

impl PaintedFunctions {
    pub(super) fn is_full(&self) -> bool {
        self.places.len() >= MOST_FUNCTIONS || self.names.names.len() >= MOST_FUNCTIONS
    }

    /// Adds a function. It is left out if it has no byte, or the table is full.
    pub(super) fn add(&mut self, addresses: Range<u64>, name: &str) {
        if addresses.is_empty() || self.is_full() {
            return;
        }
        let Some(name) = self.names.name(name) else { return };
        self.put(addresses, name);
    }

    /// Moves the function at some addresses to another one.
    pub(super) fn move_to(&mut self, from: Range<u64>, to: u64) {
        let Some(&(_, begin, name)) = self.places.get(&from.start) else { return };
        let size = from.end.saturating_sub(from.start);
        let own: Vec<u64> = self
            .places
            .range(from.start..from.end.max(from.start))
            .filter(|(_, at)| at.1 == begin)
            .map(|(at, _)| *at)
            .collect();
        for part in own {
            self.places.remove(&part);
        }
        self.put(to..to.saturating_add(size), name);
    }

    fn put(&mut self, addresses: Range<u64>, name: u32) {
        let Range { start, end } = addresses;
        if start >= end {
            return;
        }
        while let Some((&from, &(to, begin, other))) =
            self.places.range(..end).next_back().filter(|(_, at)| at.0 > start)
        {
            self.places.remove(&from);
            if to > end {
                self.places.insert(end, (to, begin, other));
            }
            if from < start {
                self.places.insert(from, (start, begin, other));
            }
        }
        self.places.insert(start, (end, start, name));
    }

    /// Makes a table of the parts that are left of each.
    pub(super) fn into_table(self) -> FunctionTable {
        let Self { places, names: mut table } = self;
        table.parts = places
            .into_iter()
            .map(|(from, (end, begin, name))| TablePart { from, end, begin, name })
            .collect();
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(table: &FunctionTable, addresses: Range<u64>) -> Vec<String> {
        let place = |(name, offset)| format!("{name}+{offset}");
        addresses.map(|at| table.find(at).map_or_else(|| "-".into(), place)).collect()
    }

    #[test]
    fn a_function_takes_the_place_of_what_was_there_before() {
        let mut painted = PaintedFunctions::default();
        painted.add(1..7, "old");
        painted.add(3..5, "new");
        painted.add(6..8, "next");
        painted.add(9..9, "empty");
        let table = painted.clone().into_table();
        let expected = ["-", "old+0", "old+1", "new+0", "new+1", "old+4", "next+0", "next+1", "-", "-"];
        assert_eq!(found(&table, 0..10), expected);
        painted.add(0..10, "all");
        assert_eq!(painted.into_table().len(), 1);
    }

    #[test]
    fn a_function_that_is_moved_is_where_it_was_moved_to_alone() {
        let mut painted = PaintedFunctions::default();
        painted.add(1..5, "f");
        painted.add(2..3, "g");
        painted.move_to(1..5, 6);
        painted.move_to(9..10, 10);
        assert_eq!(found(&painted.into_table(), 0..9), ["-", "-", "g+0", "-", "-", "-", "f+0", "f+1", "f+2"]);
    }

    #[test]
    fn names_are_shown_readable_and_looked_up_up_to_their_ends() {
        let mut painted = PaintedFunctions::default();
        painted.add(0x10..0x20, "_ZN2ns3BoxIiE3addEi");
        painted.add(0x20..u64::MAX, "a\x1b[2J");
        let table = painted.into_table();
        for _ in 0..2 {
            assert_eq!(table.find(0x1f), Some(("ns::Box<int>::add", 15)));
            assert_eq!(table.find(u64::MAX - 1), Some(("a\\u{1b}[2J", u64::MAX - 0x21)));
        }
        assert_eq!((table.find(0xf), table.find(u64::MAX)), (None, None));
    }
}
