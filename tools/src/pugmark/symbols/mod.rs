//! Functions, object files and lines of source of traced addresses.

mod data;
mod functions;
mod kernel;
mod lines;

use super::{code::TracedCode, recording::Traced};
use crate::code::image::ImageSection;
use crate::source::perf_data::VDSO;
use anyhow::{Context, Result};
pub(super) use data::DataSymbols;
use functions::FunctionPart;
pub(super) use functions::functions;
use kernel::KernelSymbol;
use lines::DEBUG_FILES;
pub(super) use lines::{SourceLine, SourceLines, SourcePlace};
use object::{Object, ObjectSegment, SegmentFlags, elf::PF_X};
use pugmark_recorder::names::readable;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
};

/// Where the libraries of a recorded program are looked for.
const LIBRARIES: [&str; 4] = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];
/// What perf calls the kernel's own code.
const KERNEL: &str = "[kernel.kallsyms]";

/// The functions of the object files whose code was traced.
#[derive(Clone, Debug, Default)]
pub(super) struct TracedSymbols {
    /// By where each begins.
    functions: BTreeMap<u64, NamedCode>,
    /// Their names, one after the other.
    names: String,
    /// The name of the file that is mapped there, and the end, by where each mapping begins.
    objects: BTreeMap<u64, (String, u64)>,
    /// Where each mapping ends, how far the file was moved, and its source, by where it begins.
    sources: BTreeMap<u64, MappedSource>,
}

#[derive(Clone, Debug)]
struct MappedSource {
    end: u64,
    moved: u64,
    lines: Rc<SourceLines>,
}

#[derive(Clone, Copy, Debug)]
struct NamedCode {
    /// Where its name begins and ends.
    name: (usize, usize),
    /// Where the function begins: earlier than its code here, if another one is in its middle.
    begin: u64,
    end: u64,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NamedPlace<'a> {
    /// The function's name and how far the address is in it.
    pub(super) function: Option<(&'a str, u64)>,
    /// The object file.
    pub(super) object: Option<&'a str>,
}

impl TracedSymbols {
    /// Finds the functions of a trace's code. The mappings in a file of `perf record` say where each file is. A
    /// recording names the program; it, its libraries and the files of `more` are where the bytes of their pages are in
    /// the traced code.
    ///
    /// # Errors
    /// If one of `more` cannot be read, or is not the code that was traced.
    pub(super) fn of(
        traced: &Traced,
        code: &TracedCode,
        symfs: Option<&Path>,
        more: &[PathBuf],
    ) -> Result<Self> {
        let mut symbols = Self::default();
        let mut seen = BTreeSet::new();
        let mut files = vec![];
        if let Some(perf) = &traced.perf {
            for section in &perf.code {
                let place = section.vaddr..section.vaddr.saturating_add(section.len);
                symbols.add_mapping(&section.file, section.offset, place, symfs);
            }
            if let Some(file) = &perf.kallsyms {
                let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
                symbols.add_kernel(&text, &perf.kernel);
            }
        } else {
            files.extend(LIBRARIES.iter().rev().map(|dir| Path::new(dir).join("ld-linux-x86-64.so.2")));
            files.extend(traced.part.as_ref().and_then(|part| part.exe.clone()).map(PathBuf::from));
        }
        while let Some(file) = files.pop() {
            if fs::canonicalize(&file).is_ok_and(|file| seen.insert(file)) {
                files.extend(symbols.add_by_bytes(&file, code).unwrap_or_default());
            }
        }
        for file in more {
            let what = || format!("--symbols {}", file.display());
            symbols.add_by_bytes(file, code).with_context(what)?;
        }
        Ok(symbols)
    }

    /// The function that an address is in, and how far.
    pub(super) fn function(&self, ip: u64) -> Option<(&str, u64)> {
        let (_, function) = self.functions.range(..=ip).next_back()?;
        let (from, to) = function.name;
        let name = self.names.get(from..to).filter(|_| ip < function.end)?;
        Some((name, ip.wrapping_sub(function.begin)))
    }

    /// A function, or a part of it, that begins at `begin`.
    fn code(&mut self, name: &str, begin: u64, end: u64) -> NamedCode {
        let from = self.names.len();
        self.names.push_str(name);
        NamedCode { name: (from, self.names.len()), begin, end }
    }

    /// The function's name, or the address.
    pub(super) fn name(&self, ip: u64) -> String {
        self.function(ip).map_or_else(|| format!("{ip:#x}"), |(name, _)| name.into())
    }

    /// The function's name and how far the address is in it, or the address.
    pub(super) fn place(&self, ip: u64) -> String {
        match self.function(ip) {
            Some((name, 0)) => name.into(),
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => format!("{ip:#x}"),
        }
    }

    /// Returns what is known of an address.
    pub(super) fn find(&self, ip: u64) -> NamedPlace<'_> {
        let object = self.objects.range(..=ip).next_back();
        NamedPlace {
            function: self.function(ip),
            object: object.filter(|(_, (_, end))| ip < *end).map(|(_, (name, _))| &**name),
        }
    }

    /// The functions of the source at an address and their lines: the innermost first, then those that the compiler has
    /// put it into. Empty if nothing is known.
    pub(super) fn source(&self, ip: u64) -> Rc<[SourcePlace]> {
        let place = self.sources.range(..=ip).next_back().filter(|(_, source)| ip < source.end);
        place.map_or_else(|| Rc::from([]), |(_, source)| source.lines.find(ip.wrapping_sub(source.moved)))
    }

    /// The line of source at an address: of the innermost function, if one was put into another.
    pub(super) fn line(&self, ip: u64) -> Option<SourceLine> {
        self.source(ip).first().and_then(|place| place.line.clone())
    }

    /// Adds the functions of a file that is mapped at least in part.
    fn add_mapping(
        &mut self,
        path: &Path,
        offset: u64,
        place: Range<u64>,
        symfs: Option<&Path>,
    ) -> Option<()> {
        // A later mapping takes the place of earlier ones.
        self.forget(&place);
        let name = match symfs.and_then(|folder| path.strip_prefix(folder).ok()) {
            // What is no file has the name that perf gives it.
            Some(inner) if inner == Path::new(VDSO) => VDSO.into(),
            Some(inner) => Path::new("/").join(inner).display().to_string(),
            None => path.display().to_string(),
        };
        self.objects.insert(place.start, (name, place.end));
        let bytes = fs::read(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let (moved, root) = (mapping_moved(&file, offset, place.start)?, symfs.unwrap_or(Path::new("/")));
        let lines = Rc::new(SourceLines::of(path, root));
        self.sources.insert(place.start, MappedSource { end: place.end, moved, lines });
        self.add_functions(&file, moved, &place, root);
        Some(())
    }

    /// Adds the functions of a kernel with this text of /proc/kallsyms and this code.
    fn add_kernel(&mut self, text: &str, code: &[ImageSection]) {
        let place = |section: &ImageSection| section.vaddr..section.vaddr.saturating_add(section.len);
        for place in code.iter().map(place) {
            self.objects.insert(place.start, (KERNEL.into(), place.end));
        }
        let symbols = kernel::symbols(text);
        for KernelSymbol { place, module, .. } in &symbols {
            if let Some(module) = module {
                self.objects.insert(place.start, (format!("[{module}]"), place.end));
            }
        }
        let functions = symbols.into_iter().map(|symbol| {
            let KernelSymbol { place, name, .. } = symbol;
            (place.start, self.code(&readable(name), place.start, place.end))
        });
        // Making a new map of many sorted entries is faster than adding them to another one.
        let mut functions: BTreeMap<_, _> = functions.collect();
        self.functions.append(&mut functions);
    }

    /// Adds the functions of a file if it was traced. Returns the libraries that it needs.
    fn add_by_bytes(&mut self, path: &Path, code: &TracedCode) -> Result<Vec<PathBuf>> {
        let bytes = fs::read(path)?;
        let file = object::File::parse(&*bytes)?;
        let moved = moved(&file, code).context("no page of its code is in the code that was traced")?;
        let lines = Rc::new(SourceLines::of(path, Path::new("/")));
        for segment in file.segments() {
            let from = segment.address().wrapping_add(moved);
            let place = from..from.saturating_add(segment.size());
            self.sources.insert(from, MappedSource { end: place.end, moved, lines: lines.clone() });
            self.objects.insert(from, (path.display().to_string(), place.end));
            self.add_functions(&file, moved, &place, Path::new("/"));
        }
        // Its functions are of use without them, too.
        let libraries = file.import_libraries().into_iter().flatten();
        let needed: BTreeSet<String> =
            libraries.filter_map(|library| String::from_utf8(library.ok()?.name().to_vec()).ok()).collect();
        let place =
            |name: &String| LIBRARIES.iter().map(|dir| Path::new(dir).join(name)).find(|file| file.exists());
        Ok(needed.iter().filter_map(place).collect())
    }

    /// Forgets what was at these addresses.
    fn forget(&mut self, place: &Range<u64>) {
        self.objects.retain(|from, (_, end)| *end <= place.start || *from >= place.end);
        self.sources.retain(|from, source| source.end <= place.start || *from >= place.end);
        self.functions.retain(|from, _| !place.contains(from));
    }

    /// Adds the functions of a file, and of its separate debug file, that are in `place` after they are moved.
    fn add_functions(&mut self, file: &object::File<'_>, moved: u64, place: &Range<u64>, root: &Path) {
        let separate = file.build_id().ok().flatten().and_then(|id| fs::read(root.join(debug_file(id))).ok());
        let separate = separate.as_deref().and_then(|bytes| object::File::parse(bytes).ok());
        let files: Vec<_> = [Some(file), separate.as_ref()].into_iter().flatten().collect();
        for FunctionPart { addresses, begin, name } in functions::parts_of(&files) {
            let start = addresses.start.wrapping_add(moved);
            if place.contains(&start) {
                let end = start.saturating_add(addresses.end - addresses.start).min(place.end);
                let code = self.code(&name, begin.wrapping_add(moved), end);
                self.functions.insert(start, code);
            }
        }
    }
}

/// How far a file was moved, if its part at `offset` is mapped at `address`.
fn mapping_moved(file: &object::File<'_>, offset: u64, address: u64) -> Option<u64> {
    let segment = file.segments().find(|segment| {
        let (from, size) = segment.file_range();
        // The mapping begins on a page, the segment need not.
        offset < from.saturating_add(size) && offset >= from & !0xfff
    })?;
    let own = segment.address().wrapping_add(offset).wrapping_sub(segment.file_range().0);
    Some(address.wrapping_sub(own))
}

/// The file with the symbols of the object file that has this build ID, relative to the root.
fn debug_file(id: &[u8]) -> PathBuf {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (folder, file) = hex.split_at(hex.len().min(2));
    Path::new(DEBUG_FILES).join(".build-id").join(folder).join(format!("{file}.debug"))
}

/// The size of a page.
const PAGE: u64 = 0x1000;

/// Finds where the code of a file was loaded, as a distance: of the file's pages that are in the traced code with the
/// same bytes, most were moved by it. `None` if there is no such page.
pub(super) fn moved(file: &object::File<'_>, code: &TracedCode) -> Option<u64> {
    let mut pages: HashMap<&[u8], u64> = HashMap::new();
    let executable = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0);
    for segment in file.segments().filter(|segment| executable(segment.flags())) {
        let (begin, bytes) = (segment.address(), segment.data().ok()?);
        let first = begin.next_multiple_of(PAGE) - begin;
        for (number, page) in bytes.get(first as usize..)?.chunks(PAGE as usize).enumerate() {
            pages.insert(page, begin + first + number as u64 * PAGE);
        }
    }
    // The last page of a segment goes on with other bytes in memory.
    let tails: Vec<_> = pages.iter().filter(|(page, _)| page.len() < PAGE as usize).collect();
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    for section in code.sections() {
        let first = section.base.next_multiple_of(PAGE) - section.base;
        for (number, page) in
            section.bytes.get(first as usize..).unwrap_or_default().chunks(PAGE as usize).enumerate()
        {
            let address = section.base + first + number as u64 * PAGE;
            let tail = tails.iter().find(|(tail, _)| !tail.is_empty() && page.starts_with(tail));
            for from in pages.get(page).copied().into_iter().chain(tail.map(|(_, from)| **from)) {
                *votes.entry(address.wrapping_sub(from)).or_default() += 1;
            }
        }
    }
    votes.into_iter().max_by_key(|(_, count)| *count).map(|(moved, _)| moved)
}

#[cfg(test)]
mod files;

#[cfg(test)]
impl TracedSymbols {
    /// Symbols for tests: functions and object files, each with its name and where it begins and ends.
    pub(super) fn known(functions: &[(&str, u64, u64)], objects: &[(&str, u64, u64)]) -> Self {
        let object = |(name, from, end): &(&str, u64, u64)| (*from, ((*name).into(), *end));
        let mut symbols = Self { objects: objects.iter().map(object).collect(), ..Self::default() };
        for (name, from, end) in functions {
            let code = symbols.code(name, *from, *end);
            symbols.functions.insert(*from, code);
        }
        symbols
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols() -> TracedSymbols {
        let functions = [("a", 0x1000, 0x1010), ("b", 0x1020, 0x1030)];
        TracedSymbols::known(&functions, &[("/x", 0x1000, 0x2000), ("/y", 0x3000, 0x4000)])
    }

    #[test]
    fn an_address_is_in_the_function_before_it_up_to_its_end() {
        for (ip, function, object) in [
            (0xfff, None, None),
            (0x1000, Some(("a", 0)), Some("/x")),
            (0x100f, Some(("a", 15)), Some("/x")),
            (0x1010, None, Some("/x")),
            (0x1021, Some(("b", 1)), Some("/x")),
            (0x1fff, None, Some("/x")),
            (0x2000, None, None),
            (0x3000, None, Some("/y")),
            (0x4000, None, None),
        ] {
            assert_eq!(symbols().find(ip), NamedPlace { function, object }, "{ip:x}");
        }
        for (ip, name, place) in
            [(0x1000, "a", "a"), (0x100f, "a", "a+0xf"), (0x1010, "0x1010", "0x1010"), (0x1021, "b", "b+0x1")]
        {
            assert_eq!((&*symbols().name(ip), &*symbols().place(ip)), (name, place));
        }
    }

    #[test]
    fn a_later_mapping_takes_the_place_of_what_it_covers() {
        let mut symbols = symbols();
        symbols.forget(&(0x1000..0x1018));
        assert_eq!(symbols.find(0x1000), NamedPlace::default());
        assert_eq!(symbols.find(0x1020).function, Some(("b", 0)));
        assert_eq!(symbols.find(0x3000).object, Some("/y"));
    }

    #[test]
    fn a_build_id_names_the_file_with_the_symbols() {
        assert_eq!(debug_file(&[0xab, 0x0c, 0xd0]), Path::new("usr/lib/debug/.build-id/ab/0cd0.debug"));
        debug_file(&[]);
    }
}
