//! Ranges of addresses to trace, by number or by the names of functions.

use super::maps::Mapping;
use object::{Object, ObjectSegment, ObjectSymbol};
use std::{fs, str::FromStr};

/// A range of addresses that is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    first: Place,
    last: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Address(u64),
    Symbol(String),
}

impl FromStr for Range {
    type Err = BadRange;

    /// `FIRST-LAST`, both included, or `FUNCTION`. Each is an address in hexadecimal with `0x` in front, or the name of
    /// a function; the range begins with the first's begin and ends with the last's end.
    fn from_str(text: &str) -> Result<Self, BadRange> {
        let bad = || BadRange { text: text.into() };
        let place = |name: &str| match name.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).map(Place::Address).map_err(|_| bad()),
            None if name.is_empty() => Err(bad()),
            None => Ok(Place::Symbol(name.into())),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: place(first)?, last: place(last)? };
        match (&range.first, &range.last) {
            (Place::Address(first), Place::Address(last)) if last < first => Err(bad()),
            _ => Ok(range),
        }
    }
}

/// A range that cannot be read, or that has no end behind its begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// It.
    pub text: String,
}

impl std::fmt::Display for BadRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} is no range: give 0xFIRST-0xLAST, FUNCTION or FUNCTION-FUNCTION", self.text)
    }
}

impl std::error::Error for BadRange {}

impl Range {
    /// The first and the last address, when the names are those of functions in files that are mapped.
    pub(super) fn resolve(&self, symbols: &Symbols) -> Option<(u64, u64)> {
        let first = match &self.first {
            Place::Address(address) => *address,
            Place::Symbol(name) => symbols.find(name)?.0,
        };
        let last = match &self.last {
            Place::Address(address) => *address,
            Place::Symbol(name) => symbols.find(name)?.1,
        };
        (first <= last).then_some((first, last))
    }
}

/// The functions of the files that are mapped.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// File, and by how much its addresses are moved.
    files: Vec<(String, u64)>,
}

impl Symbols {
    /// Those of the executable mappings, the program's own first.
    pub(super) fn new(mappings: &[Mapping], program: &str) -> Self {
        let mut files: Vec<(String, u64)> = vec![];
        for mapping in mappings.iter().filter(|mapping| mapping.executable && mapping.is_file()) {
            if files.iter().all(|(name, _)| *name != mapping.name)
                && let Some(moved) = moved(mapping)
            {
                files.push((mapping.name.clone(), moved));
            }
        }
        files.sort_by_key(|(name, _)| name != program);
        Self { files }
    }

    /// The first and the last address of the function.
    fn find(&self, name: &str) -> Option<(u64, u64)> {
        self.files.iter().find_map(|(path, moved)| {
            let bytes = fs::read(path).ok()?;
            let file = object::File::parse(&*bytes).ok()?;
            let mut symbols = file.symbols().chain(file.dynamic_symbols());
            let symbol = symbols.find(|symbol| symbol.is_definition() && symbol.name() == Ok(name))?;
            let first = symbol.address().wrapping_add(*moved);
            Some((first, first + symbol.size().max(1) - 1))
        })
    }
}

/// By how much the file's addresses are moved in this mapping of it.
fn moved(mapping: &Mapping) -> Option<u64> {
    let bytes = fs::read(&mapping.name).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    // Where two segments share a page of the file, the mapping is that of the later one.
    let segments = file.segments().filter(|segment| {
        let (offset, size) = segment.file_range();
        (offset & !0xfff..offset + size).contains(&mapping.offset)
    });
    let segment = segments.last()?;
    let unmoved = segment.address().wrapping_sub(segment.file_range().0).wrapping_add(mapping.offset);
    Some(mapping.start.wrapping_sub(unmoved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ranges_by_number_and_by_name() {
        let address = Place::Address;
        let symbol = |name: &str| Place::Symbol(name.into());
        for (text, first, last) in [
            ("0x1000-0x1fff", address(0x1000), address(0x1fff)),
            ("main", symbol("main"), symbol("main")),
            ("main-work", symbol("main"), symbol("work")),
            ("main-0x2000", symbol("main"), address(0x2000)),
            ("0x1000", address(0x1000), address(0x1000)),
        ] {
            assert_eq!(text.parse(), Ok(Range { first, last }), "{text}");
        }
        for text in ["", "-", "main-", "0x2000-0x1000", "0xz-0x1", "0x"] {
            assert_eq!(text.parse::<Range>(), Err(BadRange { text: text.into() }));
        }
    }
}
