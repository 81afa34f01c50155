//! The functions of an object file, from its symbols and its procedure linkage table.
//!
//! Source: System V Application Binary Interface, "Symbol Table"; its AMD64 supplement, "Procedure Linkage Table".

use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SectionFlags, SymbolKind, elf,
};
use pugmark_recorder::names::readable;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    ops::Range,
};

/// A function, or a part of it: another function may lie within it and cut it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionPart {
    /// The addresses of the part.
    pub(super) addresses: Range<u64>,
    /// Where the function begins.
    pub(super) begin: u64,
    pub(super) name: String,
}

/// The functions in a section: their names and ends, by where they begin.
pub(in crate::pugmark) fn functions(
    file: &object::File<'_>,
    section: &Range<u64>,
) -> BTreeMap<u64, (String, u64)> {
    let parts = parts(names(&[file])).into_iter().filter(|part| section.contains(&part.addresses.start));
    parts.map(|part| (part.addresses.start, (part.name, part.addresses.end.min(section.end)))).collect()
}

/// The functions of files that are one, and the entries of the first one's procedure linkage table, by their addresses.
/// None reaches into another.
pub(super) fn parts_of(files: &[&object::File<'_>]) -> Vec<FunctionPart> {
    let mut names = names(files);
    if let Some(file) = files.first() {
        linkage(file, &mut names);
    }
    parts(names)
}

/// How good a name is, the name, and its function's end and size; the size may not be known.
struct Named {
    quality: (bool, bool, bool, Reverse<usize>, usize),
    name: String,
    end: u64,
    has_size: bool,
}

/// The symbols of code by their addresses in the file. Of several names of one address the best is taken, as `perf`
/// chooses: one whose size is known, that is not weak, that other files see, with fewer underscores at its beginning,
/// the longer one.
fn names(files: &[&object::File<'_>]) -> HashMap<u64, Named> {
    let mut names = HashMap::new();
    for file in files {
        let sections: HashMap<_, _> = file.sections().map(|section| (section.index(), section)).collect();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let (from, size) = (symbol.address(), symbol.size());
            let section = symbol.section_index().and_then(|index| sections.get(&index));
            // What is written in assembler need not have a type.
            let is_code = match symbol.kind() {
                SymbolKind::Text => true,
                SymbolKind::Unknown => section.is_some_and(|section| is_executable(section.flags())),
                _ => false,
            };
            let Some(name) = symbol.name().ok().filter(|name| is_code && !name.is_empty()) else { continue };
            if symbol.is_undefined() {
                continue;
            }
            let section_end =
                section.map_or(from, |section| section.address().saturating_add(section.size()));
            let underscores = name.bytes().take_while(|byte| *byte == b'_').count();
            let global = symbol.is_global() && !symbol.is_weak();
            let quality = (size != 0, !symbol.is_weak(), global, Reverse(underscores), name.len());
            // Functions that are written in assembler need not have a size: they reach to the next one.
            let end = if size == 0 { section_end } else { from.saturating_add(size) };
            let named =
                |name: &str| Named { quality, name: name.into(), end: end.max(from), has_size: size != 0 };
            match names.entry(from) {
                Entry::Vacant(new) => drop(new.insert(named(name))),
                Entry::Occupied(mut known) if known.get().quality < quality => {
                    drop(known.insert(named(name)));
                }
                Entry::Occupied(_) => {}
            }
        }
    }
    names
}

fn is_executable(flags: SectionFlags) -> bool {
    matches!(flags, SectionFlags::Elf { sh_flags, .. } if sh_flags.0 & elf::SHF_EXECINSTR.0 != 0)
}

/// Cuts functions where others begin within them, and lets them go on where those end.
fn parts(names: HashMap<u64, Named>) -> Vec<FunctionPart> {
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable_by_key(|(from, _)| *from);
    let mut next = u64::MAX;
    for (from, named) in names.iter_mut().rev() {
        if !named.has_size {
            named.end = named.end.min(next);
        }
        next = *from;
    }
    let mut found = vec![];
    // Those that have not ended, the innermost last; and the end of what is in a part.
    let (mut open, mut done): (Vec<(u64, Named)>, u64) = (vec![], 0);
    let mut pass = |open: &mut Vec<(u64, Named)>, limit: u64| {
        while let Some((begin, named)) = open.last() {
            let addresses = done.max(*begin)..named.end.min(limit);
            if !addresses.is_empty() {
                done = addresses.end;
                found.push(FunctionPart {
                    addresses,
                    begin: *begin,
                    name: readable(&named.name).into_owned(),
                });
            }
            if named.end > limit {
                break;
            }
            open.pop();
        }
    };
    for (from, named) in names {
        pass(&mut open, from);
        open.push((from, named));
    }
    pass(&mut open, u64::MAX);
    found
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

/// Adds the entries of the procedure linkage table: each is named by what its slot is for, with `@plt`.
fn linkage(file: &object::File<'_>, names: &mut HashMap<u64, Named>) {
    let slots: HashMap<u64, _> = file.dynamic_relocations().into_iter().flatten().collect();
    let symbols = file.dynamic_symbol_table();
    for section in LINKAGE.iter().filter_map(|name| file.section_by_name(name)) {
        let bytes = section.data().unwrap_or_default();
        // Where the first entry is a jump and nothing else, as in programs without libraries, all have eight bytes.
        let size = if bytes.starts_with(JUMP) { 8 } else { 16 };
        for (address, entry) in (section.address()..).step_by(size).zip(bytes.chunks(size)) {
            let jump = entry.strip_prefix(ENDBR64).unwrap_or(entry);
            let jump = jump.strip_prefix(&[BND]).unwrap_or(jump);
            let Some(distance) = jump.strip_prefix(JUMP).and_then(|rest| rest.first_chunk()) else {
                continue;
            };
            let next = address + (entry.len() - jump.len()) as u64 + JUMP_BYTES;
            let slot = next.wrapping_add_signed(i32::from_le_bytes(*distance).into());
            let name = match slots.get(&slot).map(|relocation| (relocation.target(), relocation.addend())) {
                Some((RelocationTarget::Symbol(index), _)) => {
                    let symbol = symbols.as_ref().and_then(|table| table.symbol_by_index(index).ok());
                    symbol.and_then(|symbol| symbol.name().ok().map(str::to_owned))
                }
                // A function says at run time where the slot leads; it has the name of what it chooses from.
                Some((RelocationTarget::Absolute, chooser)) => {
                    let named = names.get(&(chooser as u64)).map(|named| named.name.clone());
                    named.or_else(|| Some(format!("*ABS*+{chooser:#x}")))
                }
                _ => None,
            };
            if let (Some(name), Entry::Vacant(new)) = (name, names.entry(address)) {
                let (end, name) = (address + entry.len() as u64, readable(&name).into_owned() + "@plt");
                let quality = (true, false, false, Reverse(0), 0);
                new.insert(Named { quality, name, end, has_size: true });
            }
        }
    }
}
