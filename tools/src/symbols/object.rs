//! The functions and lines of an object file, read once however many processes have mapped it.

use super::debug_files::{DebugFolders, mini};
use super::extents::FunctionExtents;
use super::functions::table_of;
use super::jitdump::JitDump;
use super::kernel::KernelSymbols;
use super::lines::{SourceLines, SourcePlace};
use super::packed::UnpackLimit;
use super::table::FunctionTable;
use crate::file::read_regular;
use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSegment};
use rustc_hash::FxHashMap;
use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The largest list of a kernel's symbols.
const MOST_KERNEL: usize = 256 << 20;

/// The symbols of a file that code comes from.
pub(super) struct ObjectSymbols {
    path: PathBuf,
    folders: DebugFolders,
    contents: ObjectContents,
}

enum ObjectContents {
    Elf(Box<ElfSymbols>),
    /// A runtime maps this file so that it is seen in a recording; its addresses are those of memory.
    JitDump(Box<JitDump>),
    /// It is not there, or has another form.
    Unknown,
}

/// The symbols of an ELF file.
struct ElfSymbols {
    segments: Vec<FileSegment>,
    /// Read when the first one is asked for.
    functions: OnceCell<FileFunctions>,
    lines: SourceLines,
}

/// The functions of an ELF file.
#[derive(Debug, Default)]
struct FileFunctions {
    /// Those with a name.
    named: FunctionTable,
    /// Those that its unwind tables tell.
    extents: FunctionExtents,
}

/// A part of an ELF file that is loaded.
#[derive(Clone, Copy, Debug)]
struct FileSegment {
    offset: u64,
    size: u64,
    address: u64,
}

impl fmt::Debug for ObjectSymbols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectSymbols").field(&self.path).finish()
    }
}

impl ObjectSymbols {
    /// Reads the symbols of a file of a system whose separate files are in these folders.
    pub(super) fn of(path: &Path, folders: DebugFolders) -> Self {
        let contents = read_regular(path).map_or(ObjectContents::Unknown, |bytes| {
            if let Some(dump) = JitDump::parse(&bytes) {
                return ObjectContents::JitDump(dump.into());
            }
            object::File::parse(&*bytes).map_or(ObjectContents::Unknown, |file| {
                let segments = file.segments().map(FileSegment::of).collect();
                let (functions, lines) = (OnceCell::new(), SourceLines::of(path, folders.clone()));
                ObjectContents::Elf(ElfSymbols { segments, functions, lines }.into())
            })
        });
        Self { path: path.into(), folders, contents }
    }

    /// Reads the functions of an ELF file that lies in memory alone.
    pub(super) fn of_file(name: &str, file: &object::File<'_>) -> Self {
        let (path, folders) = (PathBuf::from(name), DebugFolders::below(Path::new("/")));
        let segments = file.segments().map(FileSegment::of).collect();
        let functions = FileFunctions { named: table_of(&[file]), extents: FunctionExtents::of(file) }.into();
        let lines = SourceLines::of(&path, folders.clone());
        let contents = ObjectContents::Elf(ElfSymbols { segments, functions, lines }.into());
        Self { path, folders, contents }
    }

    /// Returns the file's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the distance that the file was moved, if its part at `offset` is mapped at `address`; `None` if unknown.
    pub(super) fn moved(&self, offset: u64, address: u64) -> Option<u64> {
        match &self.contents {
            ObjectContents::Elf(elf) => moved(elf.segments.iter().copied(), offset, address),
            ObjectContents::JitDump(_) => Some(0),
            ObjectContents::Unknown => None,
        }
    }

    /// Returns the function at an address in the file, and how far the address is in it.
    pub(super) fn function(&self, address: u64) -> Option<(&str, u64)> {
        match &self.contents {
            ObjectContents::Elf(elf) => self.functions(elf).named.find(address),
            ObjectContents::JitDump(dump) => dump.symbols.find(address),
            ObjectContents::Unknown => None,
        }
    }

    /// Returns where a function without a name begins and ends, if the file tells.
    pub(super) fn unnamed(&self, address: u64) -> Option<Range<u64>> {
        match &self.contents {
            ObjectContents::Elf(elf) => self.functions(elf).extents.find(address),
            _ => None,
        }
    }

    /// Returns the end of the last function before an address in the file; 0 if there is none.
    pub(super) fn end_before(&self, address: u64) -> u64 {
        match &self.contents {
            ObjectContents::Elf(elf) => {
                let FileFunctions { named, extents } = self.functions(elf);
                named.end_before(address).max(extents.end_before(address))
            }
            _ => 0,
        }
    }

    /// Returns the functions of the source at an address in the file: the innermost first, then those that it was put
    /// into.
    pub(super) fn source(&self, address: u64) -> Rc<[SourcePlace]> {
        match &self.contents {
            ObjectContents::Elf(elf) => elf.lines.find(address),
            ObjectContents::JitDump(dump) => {
                let place = |line| SourcePlace {
                    function: dump.symbols.find(address).map(|(name, _)| name.to_owned()),
                    line: Some(line),
                };
                dump.line(address).cloned().map(place).into_iter().collect()
            }
            ObjectContents::Unknown => Rc::from([]),
        }
    }

    fn functions<'a>(&self, elf: &'a ElfSymbols) -> &'a FileFunctions {
        elf.functions.get_or_init(|| functions_of(&self.path, &self.folders))
    }

    /// Returns the functions of a jitdump, whose code is anywhere.
    pub(super) fn jitdump(&self) -> Option<&JitDump> {
        match &self.contents {
            ObjectContents::JitDump(dump) => Some(dump),
            _ => None,
        }
    }
}

impl FileSegment {
    fn of(segment: object::Segment<'_, '_>) -> Self {
        let (offset, size) = segment.file_range();
        Self { offset, size, address: segment.address() }
    }
}

/// Returns the distance that a file was moved, if its part at `offset` is mapped at `address`.
pub(super) fn mapping_moved(file: &object::File<'_>, offset: u64, address: u64) -> Option<u64> {
    moved(file.segments().map(FileSegment::of), offset, address)
}

fn moved(mut segments: impl Iterator<Item = FileSegment>, offset: u64, address: u64) -> Option<u64> {
    let segment = segments.find(|segment| {
        // The mapping begins on a page, the segment need not.
        offset < segment.offset.saturating_add(segment.size) && offset >= segment.offset & !0xfff
    })?;
    let own = segment.address.wrapping_add(offset).wrapping_sub(segment.offset);
    Some(address.wrapping_sub(own))
}

fn has_symbols(file: &object::File<'_>) -> bool {
    file.symbols().next().is_some()
}

/// Reads the functions of an ELF file: its own, and those of its separate file, or of a part that is compressed, if it
/// has only those that it needs to be linked.
fn functions_of(path: &Path, folders: &DebugFolders) -> FileFunctions {
    let Ok(bytes) = read_regular(path) else { return FileFunctions::default() };
    let Ok(file) = object::File::parse(&*bytes) else { return FileFunctions::default() };
    FileFunctions { named: named_of(path, &file, bytes.len(), folders), extents: FunctionExtents::of(&file) }
}

fn named_of(path: &Path, file: &object::File<'_>, len: usize, folders: &DebugFolders) -> FunctionTable {
    if has_symbols(file) {
        return table_of(&[file]);
    }
    let separate = folders.find(path, file, has_symbols).map(|found| found.bytes);
    let separate = separate.or_else(|| mini(file, &mut UnpackLimit::of(len)));
    let separate = separate.as_deref().and_then(|bytes| object::File::parse(bytes).ok());
    let files: Vec<_> = [Some(file), separate.as_ref()].into_iter().flatten().collect();
    table_of(&files)
}

/// Reads the functions of an ELF file that lies in memory, as far as they are in it: where each begins and ends, and
/// its name. `None` if it is none.
#[must_use]
pub fn elf_functions(file: &[u8]) -> Option<Vec<(u64, u64, String)>> {
    let elf = object::File::parse(file).ok()?;
    let mini = mini(&elf, &mut UnpackLimit::of(file.len()));
    let mini = mini.as_deref().and_then(|bytes| object::File::parse(bytes).ok());
    let files: Vec<_> = [Some(&elf), mini.as_ref()].into_iter().flatten().collect();
    Some(table_of(&files).parts().map(|(part, name)| (part.from, part.end, name.to_owned())).collect())
}

/// Files with symbols, each read once.
#[derive(Debug, Default)]
pub(crate) struct SymbolFiles {
    objects: FxHashMap<PathBuf, Rc<ObjectSymbols>>,
    kernels: FxHashMap<PathBuf, Rc<KernelSymbols>>,
}

impl SymbolFiles {
    /// Reads the symbols of an object file of the system below `root`.
    pub(super) fn object(&mut self, path: &Path, root: &Path) -> Rc<ObjectSymbols> {
        if let Some(known) = self.objects.get(path) {
            return known.clone();
        }
        let symbols = Rc::new(ObjectSymbols::of(path, DebugFolders::below(root)));
        self.objects.insert(path.into(), symbols.clone());
        symbols
    }

    /// Reads the symbols of a kernel, from a copy of its /proc/kallsyms.
    ///
    /// # Errors
    /// If the file cannot be read, or is larger than 256 MiB.
    pub(crate) fn kernel(&mut self, path: &Path) -> Result<Rc<KernelSymbols>> {
        if let Some(known) = self.kernels.get(path) {
            return Ok(known.clone());
        }
        let what = || path.display().to_string();
        let bytes = read_regular(path).with_context(what)?;
        ensure!(bytes.len() <= MOST_KERNEL, "{}: larger than 256 MiB", path.display());
        let text = String::from_utf8(bytes);
        let text = text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let symbols = Rc::new(KernelSymbols::parse(text));
        self.kernels.insert(path.into(), symbols.clone());
        Ok(symbols)
    }
}
