//! The variables of the object files that a process has mapped.

use super::{names::shown, object::mapping_moved};
use crate::file::read_regular;
use crate::text::printable;
use object::{Object, ObjectSymbol, SymbolKind};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::{Path, PathBuf},
};

/// The names of a file's variables may take its size, and this much more.
const MOST_MORE: usize = 16 << 20;

/// Variables, and what is mapped.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataSymbols {
    /// Their ends and names, by where they begin.
    variables: BTreeMap<u64, (u64, String)>,
    /// Ends and names of mappings, by where they begin.
    mappings: BTreeMap<u64, (u64, String)>,
    /// The files whose variables are known, and how far each was moved.
    known: BTreeSet<(PathBuf, u64)>,
}

impl DataSymbols {
    /// Adds a mapping of a part of a file, or of anything else that has a name. It takes the place of what was there;
    /// the kernel also tells of a part whose protection changes.
    pub(crate) fn add(&mut self, file: &Path, name: &str, offset: u64, place: Range<u64>) {
        let covered: Vec<u64> = self.mappings.range(..place.end).map(|(from, _)| *from).collect();
        for from in covered {
            let Some((end, name)) = self.mappings.remove(&from) else { continue };
            if from < place.start {
                self.mappings.insert(from, (end.min(place.start), name.clone()));
            }
            if end > place.end {
                self.mappings.insert(place.end, (end, name));
            }
        }
        self.mappings.insert(place.start, (place.end, printable(name).into()));
        let Ok(bytes) = read_regular(file) else { return };
        let Ok(object) = object::File::parse(&*bytes) else { return };
        let Some(moved) = mapping_moved(&object, offset, place.start) else { return };
        if !self.known.insert((file.into(), moved)) {
            return;
        }
        // Many symbols of a damaged file may share one long name.
        let mut room = bytes.len().saturating_add(MOST_MORE);
        for symbol in object.symbols().chain(object.dynamic_symbols()) {
            let variable = symbol.kind() == SymbolKind::Data && symbol.size() > 0 && !symbol.is_undefined();
            if let Some(name) = symbol.name().ok().filter(|name| variable && !name.is_empty()) {
                let Some(left) = room.checked_sub(name.len()) else { return };
                room = left;
                let from = symbol.address().wrapping_add(moved);
                let end = from.saturating_add(symbol.size());
                self.variables.insert(from, (end, shown(name).into_owned()));
            }
        }
    }

    /// Returns the variable that an address is in, how far, and what is mapped there: `counters+0x8 (/usr/bin/x)`.
    /// `None` if nothing is known.
    pub(crate) fn find(&self, address: u64) -> Option<String> {
        let at = |map: &BTreeMap<u64, (u64, String)>| {
            let (from, (end, name)) = map.range(..=address).next_back()?;
            (address < *end).then(|| (address - from, name.clone()))
        };
        let mapped = at(&self.mappings).map(|(_, name)| name);
        let variable = at(&self.variables).map(|(offset, name)| match offset {
            0 => name,
            _ => format!("{name}+{offset:#x}"),
        });
        match (variable, mapped) {
            (Some(variable), Some(mapped)) => Some(format!("{variable} ({mapped})")),
            (variable, mapped) => variable.or(mapped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_takes_the_place_of_the_part_that_it_covers() {
        let mut symbols = DataSymbols::default();
        let none = Path::new("/none");
        symbols.add(none, "a", 0, 0x1000..0x5000);
        symbols.add(none, "b", 0, 0x6000..0x7000);
        symbols.add(none, "c", 0, 0x2000..0x3000);
        symbols.add(none, "d", 0, 0x4000..0x6800);
        let found = |page: u64| symbols.find(page << 12).unwrap_or_default();
        assert_eq!((0..8).map(found).collect::<Vec<_>>(), ["", "a", "c", "a", "d", "d", "d", ""]);
        assert_eq!([0x67ff, 0x6800].map(|address| symbols.find(address).unwrap()), ["d", "b"]);
    }

    #[test]
    fn an_address_is_in_the_variable_before_it_up_to_its_end_and_in_the_last_mapping() {
        let mut symbols = DataSymbols::default();
        symbols.add(Path::new("/none"), "/x", 0, 0x2000..0x3000);
        symbols.variables = [(0x2010, (0x2020, "a".into())), (0x5000, (0x5004, "b".into()))].into();
        for (address, expected) in [
            (0x1000, None),
            (0x2000, Some("/x")),
            (0x2010, Some("a (/x)")),
            (0x201f, Some("a+0xf (/x)")),
            (0x2020, Some("/x")),
            (0x3000, None),
            (0x5003, Some("b+0x3")),
            (0x5004, None),
        ] {
            assert_eq!(symbols.find(address).as_deref(), expected, "{address:#x}");
        }
    }
}
