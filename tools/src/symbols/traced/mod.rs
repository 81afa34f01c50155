//! The way from an address to its name: what is mapped where, in one process and in the kernel.

use super::jitdump::JitDump;
use super::kernel::{KERNEL, KernelSymbols};
use super::lines::{SourceLine, SourcePlace};
use super::object::{ObjectSymbols, SymbolFiles};
use super::perf_map::JitSymbols;
use super::table::FunctionTable;
use crate::code::image::ImageSection;
use crate::file::read_regular;
use crate::source::perf_data::VDSO;
use crate::text::printable;
use anyhow::Result;
use object::{Object, ObjectSegment, SegmentFlags, elf::PF_X};
use pugmark_decoder_core::image::Section;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
};

/// Where the libraries of a recorded program are looked for.
const LIBRARIES: [&str; 4] = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];
/// The error of a file that a trace does not have.
pub(crate) const OTHER_CODE: &str = "no page of its code is in the code that was traced";
/// The size of a page.
const PAGE: u64 = 0x1000;

/// The names of the code that a process has, and of the kernel's.
#[derive(Clone, Debug, Default)]
pub(crate) struct TracedSymbols {
    /// The mappings, by where each begins. None overlaps another.
    mapped: BTreeMap<u64, MappedObject>,
    kernel: Rc<KernelSymbols>,
    /// The code that the kernel has made while it ran.
    made: Rc<JitSymbols>,
    /// Functions that runtimes have compiled, wherever their code is.
    maps: Vec<Rc<JitSymbols>>,
    dumps: Vec<Rc<ObjectSymbols>>,
    /// Functions that are known without a file.
    own: FunctionTable,
    /// True if the code is of a program on Linux.
    is_linux: bool,
}

/// A part of a file that is mapped, or of something else that has a name.
#[derive(Clone, Debug)]
struct MappedObject {
    end: u64,
    name: Rc<str>,
    /// The file's symbols, and how far it was moved.
    file: Option<(Rc<ObjectSymbols>, u64)>,
}

/// A part of a file that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedPart<'a> {
    /// The file, where it is on this system.
    pub(crate) file: &'a Path,
    /// Where the part begins in the file.
    pub(crate) offset: u64,
    /// Its addresses.
    pub(crate) place: Range<u64>,
}

/// The names of an address, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedPlace<'a> {
    /// The function's name and how far the address is in it.
    pub(crate) function: Option<(&'a str, u64)>,
    /// The object file.
    pub(crate) object: Option<&'a str>,
}

impl TracedSymbols {
    /// Finds the function that an address is in, and how far.
    pub(crate) fn function(&self, ip: u64) -> Option<(&str, u64)> {
        let in_file = || {
            let (symbols, moved) = self.mapping(ip)?.file.as_ref()?;
            symbols.function(ip.wrapping_sub(*moved))
        };
        let dumped = || self.dumps().find_map(|dump| dump.symbols.find(ip));
        self.own
            .find(ip)
            .or_else(in_file)
            .or_else(|| self.made.find(ip))
            .or_else(|| self.kernel.find(ip))
            .or_else(|| self.maps.iter().find_map(|map| map.find(ip)))
            .or_else(dumped)
    }

    /// Returns where a function without a name begins and ends, if its file tells. The address is in no function with
    /// a name.
    pub(crate) fn unnamed(&self, ip: u64) -> Option<Range<u64>> {
        let (symbols, moved) = self.mapping(ip)?.file.as_ref()?;
        let Range { start, end } = symbols.unnamed(ip.wrapping_sub(*moved))?;
        Some(start.wrapping_add(*moved)..end.wrapping_add(*moved))
    }

    /// Returns where the function at an address begins, if its name is known or its file tells.
    pub(crate) fn begin(&self, ip: u64) -> Option<u64> {
        match self.function(ip) {
            Some((_, offset)) => Some(ip.wrapping_sub(offset)),
            None => self.unnamed(ip).map(|extent| extent.start),
        }
    }

    /// Returns the function's name, or the address at which it begins as far as its file tells.
    pub(crate) fn name(&self, ip: u64) -> String {
        match self.function(ip) {
            Some((name, _)) => name.into(),
            None => format!("{:#x}", self.unnamed(ip).map_or(ip, |extent| extent.start)),
        }
    }

    /// Returns the function's name and how far the address is in it, or the address.
    pub(crate) fn place(&self, ip: u64) -> String {
        match self.function(ip) {
            Some((name, 0)) => name.into(),
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => format!("{ip:#x}"),
        }
    }

    /// Returns what is known of an address.
    pub(crate) fn find(&self, ip: u64) -> NamedPlace<'_> {
        let mapped = || self.mapping(ip).map(|mapped| &*mapped.name);
        let runtimes = || {
            let maps = self.maps.iter().map(|map| &**map);
            let mut all = maps.chain(self.dumps().map(|dump| &dump.symbols));
            all.find(|map| map.find(ip).is_some()).map(|map| &*map.object)
        };
        NamedPlace {
            function: self.function(ip),
            // As `perf` has it, each is a file of its own.
            object: self
                .made
                .find(ip)
                .map(|(name, _)| name)
                .or_else(|| self.kernel.module(ip))
                .or_else(mapped)
                .or_else(runtimes),
        }
    }

    /// Returns the functions of the source at an address and their lines: the innermost first, then those that the
    /// compiler has put it into. Empty if nothing is known.
    pub(crate) fn source(&self, ip: u64) -> Rc<[SourcePlace]> {
        if let Some((symbols, moved)) = self.mapping(ip).and_then(|mapped| mapped.file.as_ref()) {
            return symbols.source(ip.wrapping_sub(*moved));
        }
        let dump = self.dumps.iter().find(|dump| dump.function(ip).is_some());
        dump.map_or_else(|| Rc::from([]), |dump| dump.source(ip))
    }

    /// Returns the line of source at an address: of the innermost function, if one was put into another.
    pub(crate) fn line(&self, ip: u64) -> Option<SourceLine> {
        self.source(ip).first().and_then(|place| place.line.clone())
    }

    /// Returns the end of the last function before an address that is in none, in the same object file; 0 if there is
    /// none.
    pub(crate) fn end_before(&self, ip: u64) -> u64 {
        let in_file =
            self.mapping(ip).and_then(|mapped| mapped.file.as_ref()).and_then(|(symbols, moved)| {
                let end = symbols.end_before(ip.wrapping_sub(*moved));
                (end > 0).then(|| end.wrapping_add(*moved))
            });
        let runtimes =
            self.maps.iter().map(|map| &map.table).chain(self.dumps().map(|dump| &dump.symbols.table));
        let others = runtimes.chain([&self.own]).map(|table| table.end_before(ip));
        others.chain(in_file).max().unwrap_or_default()
    }

    /// Returns true if the code is of a program on Linux.
    pub(crate) const fn is_linux(&self) -> bool {
        self.is_linux
    }

    /// Notes that the code is of a program on Linux.
    pub(crate) const fn set_linux(&mut self) {
        self.is_linux = true;
    }

    /// Returns the file that an address has its names from.
    pub(crate) fn file_at(&self, ip: u64) -> Option<&Path> {
        Some(self.mapping(ip)?.file.as_ref()?.0.path())
    }

    fn mapping(&self, ip: u64) -> Option<&MappedObject> {
        self.mapped.range(..=ip).next_back().filter(|(_, mapped)| ip < mapped.end).map(|(_, mapped)| mapped)
    }

    fn dumps(&self) -> impl Iterator<Item = &JitDump> {
        self.dumps.iter().filter_map(|dump| dump.jitdump())
    }

    /// Returns the files that the code is from, the lowest address first, each with the distance that it was moved.
    pub(crate) fn objects(&self) -> Vec<(PathBuf, u64)> {
        let mut objects: Vec<(PathBuf, u64)> = vec![];
        for (symbols, moved) in self.mapped.values().filter_map(|mapped| mapped.file.as_ref()) {
            let object = (symbols.path().to_path_buf(), *moved);
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        objects
    }

    /// Adds a part of a file that is mapped. It takes the place of what was there. With `symfs` its name is the one in
    /// that folder.
    pub(crate) fn add_mapping(
        &mut self,
        part: &MappedPart<'_>,
        symfs: Option<&Path>,
        files: &mut SymbolFiles,
    ) {
        let MappedPart { file: path, offset, place } = part;
        let name = match symfs.and_then(|folder| path.strip_prefix(folder).ok()) {
            // A mapping of no file has the name that perf gives it.
            Some(inner) if inner == Path::new(VDSO) => VDSO.into(),
            Some(inner) => Path::new("/").join(inner).display().to_string(),
            None => path.display().to_string(),
        };
        let symbols = files.object(path, symfs.unwrap_or(Path::new("/")));
        let moved = symbols.moved(*offset, place.start);
        self.add_dump(&symbols);
        self.put(place.clone(), &name, moved.map(|moved| (symbols, moved)));
    }

    /// Adds a file that was mapped, of which nothing but its name is known.
    pub(crate) fn add_name(&mut self, name: &Path, place: Range<u64>) {
        self.put(place, &name.display().to_string(), None);
    }

    /// Adds a kernel with these symbols and this code, and the code that it has made.
    pub(crate) fn add_kernel(
        &mut self,
        symbols: Rc<KernelSymbols>,
        made: Rc<JitSymbols>,
        code: &[ImageSection],
    ) {
        for section in code {
            self.put(section.vaddr..section.vaddr.saturating_add(section.len), KERNEL, None);
        }
        (self.kernel, self.made) = (symbols, made);
    }

    /// Adds the functions that the runtime of a process has listed: copies in one of the folders, or the list that lies
    /// in the folder of such files below `root`.
    pub(crate) fn add_runtime(
        &mut self,
        pid: i32,
        folders: &[PathBuf],
        root: &Path,
        files: &mut SymbolFiles,
    ) {
        self.maps.extend(JitSymbols::of_process(pid, folders, root).map(Rc::new));
        for folder in folders {
            let symbols = files.object(&folder.join(format!("jit-{pid}.dump")), root);
            self.add_dump(&symbols);
        }
    }

    fn add_dump(&mut self, symbols: &Rc<ObjectSymbols>) {
        if symbols.jitdump().is_some() && !self.dumps.iter().any(|known| Rc::ptr_eq(known, symbols)) {
            self.dumps.push(symbols.clone());
        }
    }

    /// Adds a file if the bytes of its pages are in the code that was traced. Where a name is known already, it stays.
    /// Returns the libraries that it needs; `None` if none of its pages is there.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn add_by_bytes(
        &mut self,
        path: &Path,
        code: &[Section<'_>],
        files: &mut SymbolFiles,
    ) -> Result<Option<Vec<PathBuf>>> {
        let bytes = read_regular(path)?;
        let file = object::File::parse(&*bytes)?;
        let symbols = files.object(path, Path::new("/"));
        if !self.add_object(&path.display().to_string(), &file, &symbols, code) {
            return Ok(None);
        }
        // Its functions are of use without them, too.
        let libraries = file.import_libraries().into_iter().flatten();
        let needed: BTreeSet<String> =
            libraries.filter_map(|library| String::from_utf8(library.ok()?.name().to_vec()).ok()).collect();
        let place =
            |name: &String| LIBRARIES.iter().map(|dir| Path::new(dir).join(name)).find(|file| file.exists());
        Ok(Some(needed.iter().filter(|name| !name.contains('/')).filter_map(place).collect()))
    }

    /// Adds the code that the kernel gives every program, if it is the same as in this process.
    pub(crate) fn add_vdso(&mut self, code: &[Section<'_>]) {
        let Some(bytes) = own_vdso() else { return };
        let Ok(file) = object::File::parse(&*bytes) else { return };
        // Programs that do without it are no less good.
        self.add_object(VDSO, &file, &Rc::new(ObjectSymbols::of_file(VDSO, &file)), code);
    }

    fn add_object(
        &mut self,
        name: &str,
        file: &object::File<'_>,
        symbols: &Rc<ObjectSymbols>,
        code: &[Section<'_>],
    ) -> bool {
        let Some(moved) = moved(file, code) else { return false };
        let place = |segment: object::Segment<'_, '_>| {
            let from = segment.address().wrapping_add(moved);
            from..from.saturating_add(segment.size())
        };
        let known =
            file.segments().find_map(|segment| Some(self.mapping(place(segment).start)?.name.clone()));
        for place in file.segments().map(place) {
            self.put(place, known.as_deref().unwrap_or(name), Some((symbols.clone(), moved)));
        }
        true
    }

    /// Puts something in the place of what is there.
    fn put(&mut self, place: Range<u64>, name: &str, file: Option<(Rc<ObjectSymbols>, u64)>) {
        let Range { start, end } = place;
        if start >= end {
            return;
        }
        while let Some((&from, _)) =
            self.mapped.range(..end).next_back().filter(|(_, mapped)| mapped.end > start)
        {
            let Some(covered) = self.mapped.remove(&from) else { break };
            if covered.end > end {
                self.mapped.insert(end, covered.clone());
            }
            if from < start {
                self.mapped.insert(from, MappedObject { end: start, ..covered });
            }
        }
        self.mapped.insert(start, MappedObject { end, name: printable(name).into(), file });
    }
}

/// Reads the code that the kernel has given this process.
fn own_vdso() -> Option<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let (from, to) = maps.lines().find(|line| line.ends_with(VDSO))?.split(' ').next()?.split_once('-')?;
    let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16));
    let (from, size) = (from.clone().ok()?, to.ok()?.checked_sub(from.ok()?)?);
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    let mut memory = fs::File::open("/proc/self/mem").ok()?;
    memory.seek(SeekFrom::Start(from)).ok()?;
    memory.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Finds where the code of a file was loaded, as a distance: of the file's pages that are in the traced code with
/// the same bytes, most were moved by it. `None` if there is no such page. A kernel patches itself, in each page: it
/// is at its own addresses if most bytes there are its own.
pub(crate) fn moved(file: &object::File<'_>, code: &[Section<'_>]) -> Option<u64> {
    if file.kind() == object::ObjectKind::Executable && is_at_own_addresses(file, code) {
        return Some(0);
    }
    let mut pages: HashMap<&[u8], u64> = HashMap::new();
    let executable = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0);
    // The segments of a damaged file may be the same bytes over and over.
    let mut seen = BTreeSet::new();
    for segment in file.segments().filter(|segment| executable(segment.flags())) {
        let (begin, bytes) = (segment.address(), segment.data().ok()?);
        let first = begin.wrapping_neg() % PAGE;
        if !seen.insert(bytes.as_ptr()) || seen.len() > MOST_SEGMENTS {
            continue;
        }
        for (number, page) in bytes.get(first as usize..)?.chunks(PAGE as usize).enumerate() {
            pages.insert(page, begin.wrapping_add(first + number as u64 * PAGE));
        }
    }
    // The last page of a segment goes on with other bytes in memory.
    let tails: Vec<_> = pages.iter().filter(|(page, _)| page.len() < PAGE as usize).collect();
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    for section in code {
        let first = section.base.wrapping_neg() % PAGE;
        for (number, page) in
            section.bytes.get(first as usize..).unwrap_or_default().chunks(PAGE as usize).enumerate()
        {
            let address = section.base.wrapping_add(first + number as u64 * PAGE);
            let tail = tails.iter().find(|(tail, _)| !tail.is_empty() && page.starts_with(tail));
            for from in pages.get(page).copied().into_iter().chain(tail.map(|(_, from)| **from)) {
                *votes.entry(address.wrapping_sub(from)).or_default() += 1;
            }
        }
    }
    votes.into_iter().max_by_key(|(_, count)| *count).map(|(moved, _)| moved)
}

/// Returns true if three quarters of the bytes of traced code at the addresses of a file's segments are those of the
/// file.
fn is_at_own_addresses(file: &object::File<'_>, code: &[Section<'_>]) -> bool {
    let (mut same, mut all) = (0, 0);
    for segment in file.segments().take(MOST_SEGMENTS) {
        let Ok(own) = segment.data() else { continue };
        for section in code {
            let from = section.base.max(segment.address());
            let rest = |base: u64, bytes| {
                let skipped = usize::try_from(from - base).ok()?;
                <[u8]>::get(bytes, skipped..)
            };
            if let (Some(traced), Some(own)) =
                (rest(section.base, section.bytes), rest(segment.address(), own))
            {
                let both = traced.iter().zip(own);
                all += both.len();
                same += both.filter(|(traced, own)| traced == own).count();
            }
        }
    }
    all > 0 && same >= all / 4 * 3
}

/// The most segments of code of a file.
const MOST_SEGMENTS: usize = 64;

#[cfg(test)]
mod tests;

#[cfg(test)]
impl TracedSymbols {
    /// Symbols for tests: functions and object files, each with its name and where it begins and ends.
    pub(crate) fn known(functions: &[(&str, u64, u64)], objects: &[(&str, u64, u64)]) -> Self {
        let mut symbols = Self::default();
        for (name, from, end) in objects {
            symbols.put(*from..*end, name, None);
        }
        let mut own = super::table::PaintedFunctions::default();
        for (name, from, end) in functions {
            own.add(*from..*end, name);
        }
        symbols.own = own.into_table();
        symbols
    }
}
