//! Ranges of addresses to trace, by number or by the names of functions.

use super::maps::TaskMapping;
use crate::names::readable;
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use std::{fs, str::FromStr};

/// A range of addresses that is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    first: Bound,
    last: Bound,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Bound {
    Address(u64),
    Symbol(String),
}

impl FromStr for Range {
    type Err = BadRange;

    /// Reads `FIRST-LAST`, both included, or `FUNCTION`. Each is an address in hexadecimal that begins with `0x`, or
    /// the name of a function. The range begins where the first one begins and ends where the last one ends.
    fn from_str(text: &str) -> Result<Self, BadRange> {
        let bad = || BadRange { text: text.into() };
        let place = |name: &str| match name.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).map(Bound::Address).map_err(|_| bad()),
            None if name.is_empty() => Err(bad()),
            None => Ok(Bound::Symbol(name.into())),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: place(first)?, last: place(last)? };
        match (&range.first, &range.last) {
            (Bound::Address(first), Bound::Address(last)) if last < first => Err(bad()),
            _ => Ok(range),
        }
    }
}

/// A range that cannot be read, or that ends before it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// The text.
    pub text: String,
}

impl std::fmt::Display for BadRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} is not a range: write FUNCTION, FUNCTION-FUNCTION or 0xFIRST-0xLAST", self.text)
    }
}

impl std::error::Error for BadRange {}

impl Range {
    /// Returns the first and the last address, if all named functions are in files that are mapped.
    pub(super) fn resolve(&self, symbols: &Symbols) -> Option<(u64, u64)> {
        let first = match &self.first {
            Bound::Address(address) => *address,
            Bound::Symbol(name) => symbols.find(name)?.0,
        };
        let last = match &self.last {
            Bound::Address(address) => *address,
            Bound::Symbol(name) => symbols.find(name)?.1,
        };
        (first <= last).then_some((first, last))
    }
}

/// The functions of the files that are mapped.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// A file, and the difference between its mapped addresses and those in the file.
    files: Vec<(String, u64)>,
}

impl Symbols {
    /// Finds the files of the executable mappings and puts the program's own first.
    pub(super) fn new(mappings: &[TaskMapping], program: &str) -> Self {
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

    /// Returns the files of the mappings, and where each begins.
    pub(super) fn mapped_files(mappings: &[TaskMapping]) -> Vec<(String, u64)> {
        let mut files: Vec<(String, u64)> = vec![];
        for mapping in mappings.iter().filter(|mapping| mapping.executable && mapping.is_file()) {
            if files.iter().all(|(name, _)| *name != mapping.name) {
                files.push((mapping.name.clone(), mapping.start));
            }
        }
        files
    }

    /// Returns the paths of the files.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(path, _)| &**path)
    }

    /// Returns the first and the last address of the code with this name; if `object` is given, only in a file of
    /// that name. Labels of assembly language, which have no size, are code as well.
    pub(super) fn find_code(&self, object: Option<&str>, name: &str) -> Option<(u64, u64)> {
        let files = self.files.iter().filter(|(path, _)| object.is_none_or(|object| is_named(path, object)));
        files.into_iter().find_map(|(path, moved)| {
            let bytes = fs::read(path).ok()?;
            let file = object::File::parse(&*bytes).ok()?;
            let symbol = file.symbols().chain(file.dynamic_symbols()).find(|symbol| {
                is_code(symbol) && symbol.name().is_ok_and(|own| own == name || readable(own) == name)
            })?;
            let first = symbol.address().wrapping_add(*moved);
            Some((first, first + symbol.size().max(1) - 1))
        })
    }

    /// Returns the first and the last address of a function.
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

/// Returns true if a file is meant by this name: its path, its file name, or that up to `.so`.
pub(super) fn is_named(path: &str, object: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    [path, file].contains(&object)
        || file
            .split_once(".so")
            .is_some_and(|(name, rest)| name == object && (rest.is_empty() || rest.starts_with('.')))
}

pub(super) fn is_code<'a>(symbol: &impl ObjectSymbol<'a>) -> bool {
    symbol.section_index().is_some()
        && matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown)
}

/// Returns the names of a file's functions; none, if it cannot be read.
pub(super) fn functions_of(path: &str) -> Vec<String> {
    let Ok(bytes) = fs::read(path) else { return vec![] };
    let Ok(file) = object::File::parse(&*bytes) else { return vec![] };
    let code = file.symbols().chain(file.dynamic_symbols()).filter(is_code);
    code.filter_map(|symbol| symbol.name().ok().map(|name| readable(name).into_owned())).collect()
}

/// Returns the difference between the mapping's addresses and those in its file.
fn moved(mapping: &TaskMapping) -> Option<u64> {
    let bytes = fs::read(&mapping.name).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    // If two segments share a page of the file, the mapping is that of the later one.
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
        let address = Bound::Address;
        let symbol = |name: &str| Bound::Symbol(name.into());
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

    /// Makes an ELF file with these segments: file offset, address, size.
    fn elf(segments: &[(u64, u64, u64)]) -> Vec<u8> {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let ident = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0";
        // Entry, offsets of the program and section headers, sizes of the header and of one program header, their
        // number.
        let count = segments.len() as u64;
        let mut file = [&ident[..], &words(&[0, 64, 0, 64 << 32 | 56 << 48, count])].concat();
        for &(offset, address, size) in segments {
            // PT_LOAD, readable and executable.
            file.extend(words(&[5 << 32 | 1, offset, address, address, size, size, 0x1000]));
        }
        file
    }

    #[test]
    fn a_mapping_is_that_of_the_segment_that_its_offset_lies_in() {
        let path = std::env::temp_dir().join(format!("pugmark-moved-{}", std::process::id()));
        // The second segment shares a page of the file with the first; the third has its own page.
        fs::write(&path, elf(&[(0, 0x1000, 0x1234), (0x1234, 0x3234, 0x100), (0x3000, 0x8000, 0x1000)]))
            .unwrap();
        let moved_at = |offset: u64| {
            let line = format!("70000000-70001000 r-xp {offset:x} fe:00 7 {}", path.display());
            moved(&TaskMapping::parse(&line)[0]).map(|moved| 0x7000_0000 - moved)
        };
        // The address of the mapping's first byte if the file were not moved.
        for (offset, expected) in [
            (0, Some(0x1000)),
            (0x1000, Some(0x3000)),
            (0x1333, Some(0x3333)),
            (0x1334, None),
            (0x2000, None),
            (0x3000, Some(0x8000)),
            (0x3fff, Some(0x8fff)),
            (0x4000, None),
        ] {
            assert_eq!(moved_at(offset), expected, "{offset:#x}");
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_is_named_by_its_path_its_name_or_that_up_to_so() {
        for (path, object, expected) in [
            ("/lib/libc.so.6", "/lib/libc.so.6", true),
            ("/lib/libc.so.6", "libc.so.6", true),
            ("/lib/libc.so.6", "libc", true),
            ("/lib/libc.so", "libc", true),
            ("/lib/libc.sock", "libc", false),
            ("/lib/libc.so.6", "lib", false),
            ("/lib/libc.so.6", "libc.so", false),
            ("/bin/ls", "ls", true),
            ("/bin/ls", "bin", false),
        ] {
            assert_eq!(is_named(path, object), expected, "{path} {object}");
        }
    }

    /// Returns a function with an unmangled symbol.
    #[unsafe(no_mangle)]
    extern "C" fn pugmark_filter_first() -> u32 {
        std::hint::black_box(7)
    }

    #[inline(never)]
    fn functions_found_by_their_readable_name() -> u32 {
        std::hint::black_box(8)
    }

    #[test]
    fn functions_are_found_where_they_are_mapped() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let maps = TaskMapping::parse(&fs::read_to_string("/proc/self/maps").unwrap());
        let symbols = Symbols::new(&maps, own);
        // Each file is there once, the program's own first, whatever its place in memory.
        assert_eq!(symbols.files[0].0, own);
        assert!(symbols.files.len() > 1, "{symbols:?}");
        // A mapping that is only readable does not tell where the file's code is.
        let read_only = TaskMapping::parse(&format!("10000000-10001000 r--p 0 fe:00 7 {own}"));
        assert_eq!(Symbols::new(&[&read_only[..], &maps].concat(), own).files, symbols.files);
        let at = pugmark_filter_first as *const () as u64;
        let range: Range = "pugmark_filter_first".parse().unwrap();
        let (first, last) = range.resolve(&symbols).unwrap();
        assert_eq!(first, at);
        assert!(last > first && last < first + 0x100, "{first:#x} {last:#x}");
        // Also of a file with a name, and as Rust writes names.
        let file = own.rsplit('/').next().unwrap();
        assert_eq!(symbols.find_code(Some(file), "pugmark_filter_first"), Some((first, last)));
        assert_eq!(symbols.find_code(Some("libc"), "pugmark_filter_first"), None);
        let mangled = functions_found_by_their_readable_name as *const () as u64;
        let readable = format!("{}::functions_found_by_their_readable_name", module_path!());
        assert_eq!(symbols.find_code(None, &readable).map(|(first, _)| first), Some(mangled));
        let names = functions_of(own);
        assert!(names.contains(&readable) && names.iter().any(|name| name == "pugmark_filter_first"));
        // A number can be the begin or the end. A range that ends before it begins or names no function is refused.
        let resolve = |text: &str| text.parse::<Range>().unwrap().resolve(&symbols);
        assert_eq!(resolve("0x1-pugmark_filter_first"), Some((1, last)));
        assert_eq!(resolve(&format!("pugmark_filter_first-{:#x}", at)), Some((at, at)));
        assert_eq!(resolve(&format!("pugmark_filter_first-{:#x}", at - 1)), None);
        assert_eq!((resolve("no_such_function"), resolve("0x1-no_such_function")), (None, None));
        assert_eq!(resolve("0x5"), Some((5, 5)));
    }
}
