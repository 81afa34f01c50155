//! An ELF file made from pieces of code and the names of functions.

use std::collections::BTreeSet;

/// The sizes of an ELF file's header, of one program header, one section header, and one symbol.
const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const SECTION_HEADER: u64 = 64;
const SYMBOL: u64 = 24;
/// The names of the sections, each at its offset.
const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";

/// Makes an ELF file for x86-64 with these pieces of code at their addresses, and functions that end at the next.
pub(super) fn code_file<'a>(
    pieces: &[(u64, Vec<u8>)],
    functions: impl Iterator<Item = (u64, &'a str)>,
) -> Vec<u8> {
    let mut names = vec![0];
    let mut symbols = vec![0; SYMBOL as usize];
    for (address, name) in functions {
        symbols.extend((names.len() as u32).to_le_bytes());
        // A global function, in the first section.
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend(address.to_le_bytes());
        symbols.extend(0u64.to_le_bytes());
        names.extend(name.as_bytes());
        names.push(0);
    }
    let mut offset = HEADER + PROGRAM_HEADER * pieces.len() as u64;
    let (mut program_headers, mut contents) = (Vec::new(), Vec::new());
    for (address, bytes) in pieces {
        let size = bytes.len() as u64;
        // A segment to load, that can be read and executed.
        program_headers.extend([1u32, 5].map(u32::to_le_bytes).concat());
        program_headers.extend([offset, *address, *address, size, size, 1].map(u64::to_le_bytes).concat());
        contents.extend(bytes);
        offset += size;
    }
    let name = |name: &str| -> u32 {
        let at = SECTION_NAMES.windows(name.len()).position(|part| part == name.as_bytes());
        at.expect("the name of a section") as u32
    };
    let mut section_headers = vec![0; SECTION_HEADER as usize];
    let mut section = |kind: [u32; 2], place: [u64; 3], link: [u32; 2], entry: u64| {
        section_headers.extend(kind.map(u32::to_le_bytes).concat());
        // Its flags: allocated, executable.
        let flags = if kind[1] == NOBITS { 6u64 } else { 0 };
        section_headers.extend([flags, place[0], place[1], place[2]].map(u64::to_le_bytes).concat());
        section_headers.extend(link.map(u32::to_le_bytes).concat());
        section_headers.extend([1, entry].map(u64::to_le_bytes).concat());
    };
    // The functions are anywhere; the section has no bytes of its own.
    section([name(".text"), NOBITS], [0, offset, u64::MAX], [0; 2], 0);
    for (kind, bytes, link, entry) in [
        ([name(".symtab"), SYMTAB], &symbols[..], [3, 1], SYMBOL),
        ([name(".strtab"), STRTAB], &names, [0; 2], 0),
        ([name(".shstrtab"), STRTAB], SECTION_NAMES, [0; 2], 0),
    ] {
        section(kind, [0, offset, bytes.len() as u64], link, entry);
        contents.extend(bytes);
        offset += bytes.len() as u64;
    }
    // 64 bits, little-endian, an executable for x86-64.
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    file.extend([0, HEADER, offset].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    let sizes = [HEADER, PROGRAM_HEADER, pieces.len() as u64, SECTION_HEADER, 5, 4];
    file.extend(sizes.map(|size| (size as u16).to_le_bytes()).concat());
    [file, program_headers, contents, section_headers].concat()
}

const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOBITS: u32 = 8;

/// Iterates over the functions of the kernel itself in Linux's /proc/kallsyms.
pub(super) fn kallsyms(text: &str) -> impl Iterator<Item = (u64, &str)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
        let name = words.next()?;
        // The next word would be a module's name.
        (is_code && address != 0 && words.next().is_none()).then_some((address, name))
    })
}

/// Returns the functions, and those in these pages a second time, that many bytes lower.
pub(super) fn also_lower<'a>(
    functions: impl Iterator<Item = (u64, &'a str)>,
    lower: u64,
    pages: &BTreeSet<u64>,
) -> impl Iterator<Item = (u64, &'a str)> {
    functions.flat_map(move |(address, name)| {
        let low = address.checked_sub(lower).filter(|low| pages.contains(&(low & !0xfff)));
        [Some((address, name)), low.map(|low| (low, name))].into_iter().flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

    #[test]
    fn the_file_has_the_code_and_the_names_at_their_addresses() {
        let pieces = [(0x1000, vec![0x90; 3]), (0xffff_ffff_8100_0000, vec![0xc3; 5])];
        let file = code_file(&pieces, [(0x1001, "a"), (0xffff_ffff_8100_0004, "long_name")].into_iter());
        let file = object::File::parse(&file[..]).unwrap();
        let segments: Vec<_> =
            file.segments().map(|segment| (segment.address(), segment.data().unwrap().to_vec())).collect();
        assert_eq!(segments, pieces);
        let symbols: Vec<_> =
            file.symbols().map(|symbol| (symbol.address(), symbol.name().unwrap())).collect();
        assert_eq!(symbols, [(0x1001, "a"), (0xffff_ffff_8100_0004, "long_name")]);
        assert!(
            file.symbols()
                .all(|symbol| symbol.kind() == SymbolKind::Text && symbol.section_index().is_some())
        );
    }

    #[test]
    fn functions_of_the_kernel_are_taken_and_nothing_else() {
        let text = "ffffffff81000000 T _stext\nffffffff81000010 t inner\nffffffff82000000 D data\n\
            0000000000000000 A fixed\nffffffffc0000000 t of_module\t[module]\nffffffff81000020 W weak\nnoise";
        let found: Vec<_> = kallsyms(text).map(|(address, name)| (address & 0xff, name)).collect();
        assert_eq!(found, [(0, "_stext"), (0x10, "inner"), (0x20, "weak")]);
    }

    #[test]
    fn a_function_is_named_where_it_executes_before_the_kernel_is_at_its_addresses() {
        let functions = [(0x8000_1234, "first"), (0x8000_3000, "second"), (0x10, "low")];
        let found: Vec<_> = also_lower(functions.into_iter(), 0x8000_0000, &[0x1000].into()).collect();
        assert_eq!(
            found,
            [(0x8000_1234, "first"), (0x1234, "first"), (0x8000_3000, "second"), (0x10, "low")]
        );
    }
}
