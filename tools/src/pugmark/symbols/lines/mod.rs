//! Lines of source, and the functions that the compiler has put into others, from a file's debug information (DWARF).

use addr2line::{Context, Frame, Location};
use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};
use object::{CompressionFormat, Object, ObjectSection};
use pugmark_recorder::names::readable;
use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    fmt, fs,
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

type Bytes = EndianArcSlice<LittleEndian>;

/// Where packages put the debug information that they take out of their programs.
pub(super) const DEBUG_FILES: &str = "usr/lib/debug";

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SourceLine {
    /// The file, with its folder as the compiler knew it.
    pub(crate) file: Rc<str>,
    /// The line's number, from 1 on.
    pub(crate) line: u32,
}

impl SourceLine {
    /// The file's name without its folder, and the line.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourcePlace {
    /// The function's name, if it is known.
    pub(crate) function: Option<String>,
    /// The line, if it is known.
    pub(crate) line: Option<SourceLine>,
}

/// The source of an object file. Its debug information is read when the first line is asked for.
pub(crate) struct SourceLines {
    path: PathBuf,
    root: PathBuf,
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
    /// The source of a file, whose separate debug information is looked for below `root`.
    pub(crate) fn of(path: &Path, root: &Path) -> Self {
        let (context, known) = (OnceCell::new(), RefCell::default());
        Self { path: path.into(), root: root.into(), context, known }
    }

    /// The lines of the code in a range of addresses in the file, by address. Empty if nothing is known.
    pub(crate) fn lines(&self, addresses: Range<u64>) -> Vec<(Range<u64>, SourceLine)> {
        let Range { start, end } = addresses;
        let rows = self.context().and_then(|context| context.find_location_range(start, end).ok());
        let row = |(from, size, at): (u64, u64, Location<'_>)| {
            let line = SourceLine { file: at.file?.into(), line: at.line? };
            Some((from..from.saturating_add(size), line))
        };
        rows.into_iter().flatten().filter_map(row).collect()
    }

    fn context(&self) -> Option<&Context<Bytes>> {
        self.context.get_or_init(|| load(&self.path, &self.root)).as_ref()
    }

    /// The functions of the source at an address in the file: the innermost first, then those that it was inlined
    /// into. Empty if nothing is known.
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
            function: name.map(|name| readable(&name).into_owned()),
            line: place.map(|(file, line)| SourceLine { file: file.into(), line }),
        }
    }
}

/// Reads the debug information of a file: its own, or that of its separate file.
fn load(path: &Path, root: &Path) -> Option<Context<Bytes>> {
    let bytes = fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    if has_lines(&file) {
        return context(path, &file, root);
    }
    separate(path, &file, root).into_iter().find_map(|path| {
        let bytes = fs::read(&path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        has_lines(&file).then(|| context(&path, &file, root)).flatten()
    })
}

fn has_lines(file: &object::File<'_>) -> bool {
    file.section_by_name(SectionId::DebugInfo.name()).is_some()
}

/// Where the debug information of a file may be: by its build ID; by the name that it has for it, beside it, in
/// `.debug` there, and in a folder for all such files.
fn separate(path: &Path, file: &object::File<'_>, root: &Path) -> Vec<PathBuf> {
    let by_id = file.build_id().ok().flatten().map(|id| root.join(super::debug_file(id)));
    let mut found: Vec<PathBuf> = by_id.into_iter().collect();
    let link = file.gnu_debuglink().ok().flatten().and_then(|(name, _)| std::str::from_utf8(name).ok());
    if let (Some(name), Some(folder)) = (link, path.parent()) {
        let inner = folder.strip_prefix(root).or_else(|_| folder.strip_prefix("/")).unwrap_or(folder);
        found.extend([folder.join(name), folder.join(".debug").join(name)]);
        found.push(root.join(DEBUG_FILES).join(inner).join(name));
    }
    // The name may be the file's own.
    found.retain(|other| other != path);
    found
}

fn context(path: &Path, file: &object::File<'_>, root: &Path) -> Option<Context<Bytes>> {
    let mut dwarf = dwarf(file)?;
    // Debug information that several files share may be in a file of its own.
    if let Ok(Some((name, id))) = file.gnu_debugaltlink() {
        let beside = std::str::from_utf8(name).ok().and_then(|name| Some(path.parent()?.join(name)));
        let bytes = [Some(root.join(super::debug_file(id))), beside].into_iter().flatten();
        let bytes = bytes.filter_map(|path| fs::read(path).ok()).next();
        let common = bytes.as_ref().and_then(|bytes| object::File::parse(&**bytes).ok());
        if let Some(common) = common.and_then(|file| self::dwarf(&file)) {
            dwarf.set_sup(common);
        }
    }
    Context::from_dwarf(dwarf).ok()
}

fn dwarf(file: &object::File<'_>) -> Option<Dwarf<Bytes>> {
    let load = |id: SectionId| {
        let bytes = file.section_by_name(id.name()).and_then(|section| unpacked(&section));
        Ok::<_, gimli::Error>(Bytes::new(Arc::from(bytes.unwrap_or_default()), LittleEndian))
    };
    Dwarf::load(load).ok()
}

/// The bytes of a section, which may be compressed.
fn unpacked(section: &object::Section<'_, '_>) -> Option<Vec<u8>> {
    let packed = section.compressed_data().ok()?;
    let size = usize::try_from(packed.uncompressed_size).ok()?;
    match packed.format {
        CompressionFormat::None => Some(packed.data.to_vec()),
        CompressionFormat::Zlib => {
            miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(packed.data, size).ok()
        }
        CompressionFormat::Zstandard => {
            let mut bytes = vec![];
            let stream = ruzstd::decoding::StreamingDecoder::new(packed.data).ok()?;
            stream.take(packed.uncompressed_size).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
