//! The symbols of the kernel and of a program, read from their ELF files.

use core::fmt;
use core::ops::Range;
use elf::ElfBytes;
use elf::abi::STT_FUNC;
use elf::endian::LittleEndian;
use elf::string_table::StringTable;
use elf::symbol::{Symbol, SymbolTable};
use rustc_demangle::demangle;
use spin::Once;

type Symbols = (SymbolTable<'static, LittleEndian>, StringTable<'static>);

/// The kernel's symbols, and a program's, with their names.
static FILES: [Once<Symbols>; 2] = [const { Once::new() }; 2];

/// Adds the functions of an ELF file: the kernel's, or a program's, of which there is one.
pub(crate) fn add(file: &'static [u8]) {
    let elf = ElfBytes::minimal_parse(file).expect("an ELF file");
    let symbols = elf.symbol_table().expect("a symbol table");
    if let (Some(symbols), Some(free)) = (symbols, FILES.iter().find(|file| !file.is_completed())) {
        free.call_once(|| symbols);
    }
}

/// The function at an address; prints its name in the source, or `?` if there is none.
pub struct Function(pub u64);

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match function(self.0).and_then(|(symbol, names)| names.get(symbol.st_name as usize).ok()) {
            Some(name) => write!(f, "{:#}", demangle(name)),
            None => f.write_str("?"),
        }
    }
}

/// Returns true if a function begins at `to` and does not contain `from`.
pub fn begins_another(from: u64, to: u64) -> bool {
    function_range(to).is_some_and(|function| function.start == to && !function.contains(&from))
}

/// Returns the addresses of the function at an address.
pub fn function_range(address: u64) -> Option<Range<u64>> {
    function(address).map(|(symbol, _)| addresses(&symbol))
}

fn function(address: u64) -> Option<(Symbol, &'static StringTable<'static>)> {
    let is_there = |symbol: &Symbol| symbol.st_symtype() == STT_FUNC && addresses(symbol).contains(&address);
    let mut files = FILES.iter().filter_map(Once::get);
    files.find_map(|(symbols, names)| Some((symbols.iter().find(is_there)?, names)))
}

fn addresses(symbol: &Symbol) -> Range<u64> {
    symbol.st_value..symbol.st_value + symbol.st_size.max(1)
}
