//! The functions of an object file, from its symbols and its procedure linkage table.
//!
//! Source: System V Application Binary Interface, "Symbol Table"; its AMD64 supplement, "Procedure Linkage Table".

use super::table::{FunctionTable, MOST_FUNCTIONS, TablePart};
use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SectionFlags, SymbolKind, elf,
};
use pugmark_recorder::names::readable;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    ops::Range,
};

/// The names of a file may take this many times its size, and this much more: many symbols may share one long name.
const MOST_TIMES: usize = 1;
const MOST_MORE: usize = 16 << 20;

/// Returns the functions of a file: their names and ends, by where they begin.
pub(crate) fn functions(file: &object::File<'_>) -> BTreeMap<u64, (String, u64)> {
    let mut names = FoundNames::default();
    names.add_symbols(file);
    names.into_table().parts().map(|(part, name)| (part.from, (name.to_owned(), part.end))).collect()
}

/// Returns the functions of files that are one, and the entries of the first one's procedure linkage table, by their
/// addresses. None reaches into another.
pub(super) fn table_of(files: &[&object::File<'_>]) -> FunctionTable {
    let mut names = FoundNames::default();
    for file in files {
        names.add_symbols(file);
    }
    if let Some(file) = files.first() {
        names.add_linkage(file);
    }
    names.into_table()
}

/// A name with its quality and place in the text, and its function's addresses; the size may not be known.
struct Named {
    from: u64,
    end: u64,
    has_size: bool,
    quality: (bool, bool, bool, Reverse<u32>, u32),
    text: Range<usize>,
}

/// Names of functions, in any order, several of an address.
#[derive(Default)]
struct FoundNames {
    found: Vec<Named>,
    text: String,
}

impl FoundNames {
    /// Adds the symbols of code, at their addresses in the file.
    fn add_symbols(&mut self, file: &object::File<'_>) {
        let most =
            self.text.len().saturating_add(extent(file).saturating_mul(MOST_TIMES)).saturating_add(MOST_MORE);
        let sections: HashMap<_, _> = file.sections().map(|section| (section.index(), section)).collect();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let (from, size) = (symbol.address(), symbol.size());
            let section = symbol.section_index().and_then(|index| sections.get(&index));
            // Code that is written in assembler need not have a type.
            let is_code = match symbol.kind() {
                SymbolKind::Text => true,
                SymbolKind::Unknown => section.is_some_and(|section| is_executable(section.flags())),
                _ => false,
            };
            if !is_code || symbol.is_undefined() {
                continue;
            }
            let Some(name) = symbol.name().ok().filter(|name| !name.is_empty()) else { continue };
            if self.text.len() > most || self.found.len() >= MOST_FUNCTIONS {
                return;
            }
            let section_end =
                section.map_or(from, |section| section.address().saturating_add(section.size()));
            let underscores = name.bytes().take_while(|byte| *byte == b'_').count();
            let global = symbol.is_global() && !symbol.is_weak();
            let quality =
                (size != 0, !symbol.is_weak(), global, Reverse(underscores as u32), name.len() as u32);
            // Functions that are written in assembler need not have a size: they reach to the next one.
            let end = if size == 0 { section_end } else { from.saturating_add(size) };
            self.add(Named { from, end: end.max(from), has_size: size != 0, quality, text: 0..0 }, name);
        }
    }

    fn add(&mut self, named: Named, name: &str) {
        let begin = self.text.len();
        self.text.push_str(name);
        self.found.push(Named { text: begin..self.text.len(), ..named });
    }

    /// Keeps one name of each address, in the order of addresses: the best one, as `perf` chooses. That is one whose
    /// size is known, that is not weak, that other files see, with fewer underscores at its beginning, the longer one.
    fn choose(&mut self) {
        self.found.sort_by_key(|named| (named.from, Reverse(named.quality)));
        self.found.dedup_by_key(|named| named.from);
    }

    /// Cuts functions where others begin within them, and lets them go on where those end.
    fn into_table(mut self) -> FunctionTable {
        self.choose();
        let Self { mut found, text } = self;
        let mut next = u64::MAX;
        for named in found.iter_mut().rev() {
            if !named.has_size {
                named.end = named.end.min(next);
            }
            next = named.from;
        }
        let mut table = FunctionTable::of_text(text);
        table.reserve(found.len());
        // Those that have not ended, the innermost last; and the end of what is in a part.
        let (mut open, mut done): (Vec<(u64, u64, u32)>, u64) = (vec![], 0);
        let mut pass = |table: &mut FunctionTable, open: &mut Vec<(u64, u64, u32)>, limit: u64| {
            while let Some(&(begin, end, name)) = open.last() {
                let (from, to) = (done.max(begin), end.min(limit));
                if from < to {
                    done = to;
                    table.push(TablePart { from, end: to, begin, name });
                }
                if end > limit {
                    break;
                }
                open.pop();
            }
        };
        for Named { from, end, text, .. } in found {
            pass(&mut table, &mut open, from);
            open.extend(table.name_at(text).map(|name| (from, end, name)));
        }
        pass(&mut table, &mut open, u64::MAX);
        table
    }
}

/// Returns the size of a file up to the end of its last section.
pub(crate) fn extent(file: &object::File<'_>) -> usize {
    let whole = file.sections().filter(|section| section.data().is_ok());
    let ends = whole.filter_map(|section| section.file_range()).map(|(from, size)| from.saturating_add(size));
    ends.max().map_or(0, |end| usize::try_from(end).unwrap_or(0))
}

fn is_executable(flags: SectionFlags) -> bool {
    matches!(flags, SectionFlags::Elf { sh_flags, .. } if sh_flags.0 & elf::SHF_EXECINSTR.0 != 0)
}

/// The sections with procedure linkage tables.
const LINKAGE: [&str; 3] = [".plt", ".plt.got", ".plt.sec"];
/// ENDBR64, with which each entry begins where indirect branches are tracked.
const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
/// JMP to where a slot says, and its size with the slot's distance.
const JUMP: &[u8] = &[0xff, 0x25];
const JUMP_BYTES: u64 = 6;
/// BND, a prefix of the jump.
const BND: u8 = 0xf2;

/// The name of what an entry of the procedure linkage table leads to, and where it is named.
enum EntryName {
    Text(String),
    /// It is the name of the function at this address, which chooses at run time where the entry leads.
    Chooser(u64),
}

impl FoundNames {
    /// Adds the entries of the procedure linkage table: each is named by what its slot is for, with `@plt`.
    fn add_linkage(&mut self, file: &object::File<'_>) {
        let mut entries = vec![];
        each_entry(file, |address, size, name| entries.push((address, size, name)));
        if entries.is_empty() {
            return;
        }
        self.choose();
        let mut added = vec![];
        for (from, size, name) in entries.into_iter().take(MOST_FUNCTIONS) {
            let known = |at: u64| self.found.binary_search_by_key(&at, |named| named.from).ok();
            let name = match name {
                EntryName::Text(name) => name,
                EntryName::Chooser(at) => match known(at) {
                    Some(number) => self.text[self.found[number].text.clone()].to_owned(),
                    None => format!("*ABS*+{at:#x}"),
                },
            };
            let (end, name) = (from.saturating_add(size), readable(&name).into_owned() + "@plt");
            // The worst of all: an entry that has a symbol keeps it.
            let quality = (false, false, false, Reverse(u32::MAX), 0);
            added.push((Named { from, end, has_size: true, quality, text: 0..0 }, name));
        }
        for (named, name) in added {
            self.add(named, &name);
        }
    }
}

/// Finds the entries of the procedure linkage table: the address, size and name of each.
fn each_entry(file: &object::File<'_>, mut add: impl FnMut(u64, u64, EntryName)) {
    let slots: HashMap<u64, _> = file.dynamic_relocations().into_iter().flatten().collect();
    let symbols = file.dynamic_symbol_table();
    for section in LINKAGE.iter().filter_map(|name| file.section_by_name(name)) {
        let bytes = section.data().unwrap_or_default();
        // Where the first entry is a jump and nothing else, as in programs without libraries, all have eight bytes.
        let size = if bytes.starts_with(JUMP) { 8 } else { 16 };
        for (number, entry) in bytes.chunks(size).enumerate() {
            let address = section.address().wrapping_add((number * size) as u64);
            let jump = entry.strip_prefix(ENDBR64).unwrap_or(entry);
            let jump = jump.strip_prefix(&[BND]).unwrap_or(jump);
            let Some(distance) = jump.strip_prefix(JUMP).and_then(|rest| rest.first_chunk()) else {
                continue;
            };
            let next = address.wrapping_add((entry.len() - jump.len()) as u64 + JUMP_BYTES);
            let slot = next.wrapping_add_signed(i32::from_le_bytes(*distance).into());
            let name = match slots.get(&slot).map(|relocation| (relocation.target(), relocation.addend())) {
                Some((RelocationTarget::Symbol(index), _)) => {
                    let symbol = symbols.as_ref().and_then(|table| table.symbol_by_index(index).ok());
                    symbol.and_then(|symbol| Some(EntryName::Text(symbol.name().ok()?.to_owned())))
                }
                Some((RelocationTarget::Absolute, chooser)) => Some(EntryName::Chooser(chooser as u64)),
                _ => None,
            };
            name.into_iter().for_each(|name| add(address, entry.len() as u64, name));
        }
    }
}
