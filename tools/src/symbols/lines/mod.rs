//! Lines of source, and the functions that the compiler has put into others, from a file's debug information (DWARF).

mod placed;

use super::debug_files::DebugFolders;
use super::names::shown;
use super::packed::{UnpackError, UnpackLimit};
use crate::file::read_regular;
use crate::output::tell;
use crate::text::printable;
use addr2line::{Context, Frame, Location};
use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};
use object::{Object, ObjectSection};
use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

pub(crate) use placed::ProfilePlace;

type Bytes = EndianArcSlice<LittleEndian>;

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SourceLine {
    /// The file, with its folder as the compiler knew it.
    pub(crate) file: Rc<str>,
    /// The line's number, from 1 on.
    pub(crate) line: u32,
}

impl SourceLine {
    /// Returns the file's name without its folder, and the line.
    pub(crate) fn short(&self) -> String {
        let name = self.file.rsplit('/').next().unwrap_or(&self.file);
        format!("{name}:{}", self.line)
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A function of the source at an address, and the line there. For a function that another one was inlined into, the
/// line is that of the call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SourcePlace {
    /// The function's name, if it is known.
    pub(crate) function: Option<String>,
    /// The line, if it is known.
    pub(crate) line: Option<SourceLine>,
}

/// The source of an object file. Its debug information is read when the first line is asked for.
pub(crate) struct SourceLines {
    path: PathBuf,
    folders: DebugFolders,
    context: OnceCell<Option<Context<Bytes>>>,
    /// The lines that were found, by address.
    known: RefCell<HashMap<u64, Rc<[SourcePlace]>>>,
}

impl fmt::Debug for SourceLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SourceLines").field(&self.path).finish()
    }
}

impl SourceLines {
    /// Returns the source of a file, whose separate debug information is looked for in these folders.
    pub(crate) fn of(path: &Path, folders: DebugFolders) -> Self {
        let (context, known) = (OnceCell::new(), RefCell::default());
        Self { path: path.into(), folders, context, known }
    }

    /// Returns the lines of the code in a range of addresses in the file, by address. Empty if nothing is known.
    pub(crate) fn lines(&self, addresses: Range<u64>) -> Vec<(Range<u64>, SourceLine)> {
        let Range { start, end } = addresses;
        let rows = self.context().and_then(|context| context.find_location_range(start, end).ok());
        let row = |(from, size, at): (u64, u64, Location<'_>)| {
            let line = SourceLine { file: printable(at.file?).into(), line: at.line? };
            Some((from..from.saturating_add(size), line))
        };
        rows.into_iter().flatten().filter_map(row).collect()
    }

    fn context(&self) -> Option<&Context<Bytes>> {
        self.context.get_or_init(|| load(&self.path, &self.folders)).as_ref()
    }

    /// Returns the functions of the source at an address in the file: the innermost first, then those that it was
    /// inlined into. Empty if nothing is known.
    pub(crate) fn find(&self, address: u64) -> Rc<[SourcePlace]> {
        if let Some(known) = self.known.borrow().get(&address) {
            return known.clone();
        }
        let found: Rc<[_]> =
            self.context().map(|context| places(context, address)).unwrap_or_default().into();
        self.known.borrow_mut().insert(address, found.clone());
        found
    }
}

fn places(context: &Context<Bytes>, address: u64) -> Vec<SourcePlace> {
    let mut found = vec![];
    let Ok(mut frames) = context.find_frames(address).skip_all_loads() else { return found };
    while let Ok(Some(frame)) = frames.next() {
        found.push(SourcePlace::of(&frame));
    }
    found
}

impl SourcePlace {
    fn of(frame: &Frame<'_, Bytes>) -> Self {
        let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
        let place = frame.location.as_ref().and_then(|at| at.file.zip(at.line));
        Self {
            function: name.map(|name| shown(&name).into_owned()),
            line: place.map(|(file, line)| SourceLine { file: printable(file).into(), line }),
        }
    }
}

/// Reads the debug information of a file: its own, or that of its separate file.
fn load(path: &Path, folders: &DebugFolders) -> Option<Context<Bytes>> {
    let bytes = read_regular(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    if has_lines(&file) {
        return context(path, &file, bytes.len(), folders);
    }
    let found = folders.find(path, &file, has_lines)?;
    let file = object::File::parse(&*found.bytes).ok()?;
    context(&found.path, &file, found.bytes.len(), folders)
}

fn has_lines(file: &object::File<'_>) -> bool {
    file.section_by_name(SectionId::DebugInfo.name()).is_some()
}

fn context(
    path: &Path,
    file: &object::File<'_>,
    size: usize,
    folders: &DebugFolders,
) -> Option<Context<Bytes>> {
    let mut dwarf = dwarf(path, file, size)?;
    // Debug information that several files share may be in a file of its own.
    if let Some(found) = folders.common(path, file)
        && let Ok(file) = object::File::parse(&*found.bytes)
        && let Some(common) = self::dwarf(&found.path, &file, found.bytes.len())
    {
        dwarf.set_sup(common);
    }
    Context::from_dwarf(dwarf).ok()
}

/// Reads the sections. Warns of one that cannot be read, without which nothing is known.
fn dwarf(path: &Path, file: &object::File<'_>, size: usize) -> Option<Dwarf<Bytes>> {
    let mut limit = UnpackLimit::of(size);
    let load = |id: SectionId| -> Result<Bytes, (SectionId, u64, UnpackError)> {
        let Some(section) = file.section_by_name(id.name()) else {
            return Ok(Bytes::new(Arc::from([]), LittleEndian));
        };
        let bytes = limit.unpack(&section);
        let place = section.file_range().map_or(0, |(at, _)| at);
        bytes.map(|bytes| Bytes::new(bytes, LittleEndian)).map_err(|error| (id, place, error))
    };
    Dwarf::load(load)
        .inspect_err(|(id, place, error)| {
            tell(format_args!(
                "pugmark: warning: {}: at {place:#x}, section {}: {error}; no lines of source are shown",
                path.display(),
                id.name()
            ));
        })
        .ok()
}

#[cfg(test)]
mod tests;
