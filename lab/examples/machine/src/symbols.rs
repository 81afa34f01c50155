//! The kernel's own symbols, read from its ELF file.
//!
//! Source: "ELF-64 Object File Format", "Sections" and "Symbol Table".

use core::fmt;
use core::ops::Range;
use rustc_demangle::demangle;
use spin::Once;

static SYMBOLS: Once<Symbols> = Once::new();

const SECTION_SYMTAB: u32 = 2;
const SYMBOL_FUNCTION: u8 = 2;
const SYMBOL_SIZE: usize = 24;

struct Symbols {
    table: &'static [u8],
    names: &'static [u8],
}

/// Reads the kernel's file.
pub(crate) fn init(file: &'static [u8]) {
    let section = |index: usize| {
        let header = word(file, 0x28) as usize + 64 * index;
        let (offset, size) = (word(file, header + 0x18) as usize, word(file, header + 0x20) as usize);
        (half(file, header + 4), half(file, header + 0x28) as usize, offset, size)
    };
    let sections = half(file, 0x3c) as usize & 0xffff;
    let symtab = (0..sections).map(section).find(|(kind, ..)| *kind == SECTION_SYMTAB);
    let Some((_, link, offset, size)) = symtab else { return };
    let (_, _, names, names_size) = section(link);
    let (Some(table), Some(names)) = (file.get(offset..offset + size), file.get(names..names + names_size))
    else {
        return;
    };
    SYMBOLS.call_once(|| Symbols { table, names });
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    word(bytes, at) as u32
}

/// The function at an address; prints its name in the source, or `?` if there is none.
pub struct Function(pub u64);

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match find(self.0) {
            Some(name) => write!(f, "{:#}", demangle(name)),
            None => f.write_str("?"),
        }
    }
}

/// Returns true if a function begins at `to` and does not contain `from`.
pub fn begins_another(from: u64, to: u64) -> bool {
    function(to).is_some_and(|symbol| addresses(symbol).start == to && !addresses(symbol).contains(&from))
}

fn function(address: u64) -> Option<&'static [u8; SYMBOL_SIZE]> {
    let is_there = |symbol: &&[u8; SYMBOL_SIZE]| {
        symbol[4] & 0xf == SYMBOL_FUNCTION && addresses(symbol).contains(&address)
    };
    SYMBOLS.get()?.table.as_chunks::<SYMBOL_SIZE>().0.iter().find(is_there)
}

fn addresses(symbol: &[u8; SYMBOL_SIZE]) -> Range<u64> {
    let (start, size) = (word(symbol, 8), word(symbol, 16));
    start..start + size.max(1)
}

fn find(address: u64) -> Option<&'static str> {
    let symbol = function(address)?;
    let name = SYMBOLS.get()?.names.get(half(symbol, 0) as usize..)?;
    core::str::from_utf8(name.split(|&byte| byte == 0).next()?).ok()
}
