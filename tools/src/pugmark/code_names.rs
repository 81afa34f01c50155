//! The names of the code that was traced: of what perf's file says was mapped, or of the files that a recording names.

use super::{notes::CommandNotes, options::Input, recording::Traced};
use crate::code::image::{self, ImageSection};
use crate::file::{below, read_regular};
use crate::symbols::{MappedPart, SymbolFiles, TracedSymbols};
use anyhow::{Context, Result};
use pugmark_decoder_core::image::Section;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The dynamic linker of 64-bit programs, which the programs' files do not name among their libraries.
const LINKERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"];
/// The number of folders above a trace in which copies of what runtimes have listed may be.
const FOLDERS: usize = 2;
/// The size of a page.
const PAGE: u64 = 0x1000;

/// Where names come from besides the trace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameSources<'a> {
    /// The folder with the files that perf names.
    pub(super) symfs: Option<&'a Path>,
    /// Files that have names, too.
    pub(super) more: &'a [PathBuf],
    /// The processes that have the code.
    pub(super) processes: &'a [i32],
    /// Where a command keeps what it finds out about the files.
    pub(super) notes: Option<&'a CommandNotes>,
}

impl<'a> NameSources<'a> {
    /// Returns the sources of a command's input, and these files.
    pub(super) fn of(input: &'a Input, more: &'a [PathBuf]) -> Self {
        Self { symfs: input.symfs.as_deref(), more, processes: &[], notes: Some(&input.notes) }
    }
}

/// The number of pages of a file's code in a trace, of those that the file has now, and where the first other one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangedFile {
    pub(super) pages: usize,
    pub(super) same: usize,
    other: Option<u64>,
}

/// Returns true if enough pages are the same to take the names of a file.
pub(super) const fn is_most(same: usize, pages: usize) -> bool {
    same * 2 > pages
}

/// Finds the names of a trace's code. The mappings in a file of `perf record` or in a recording say where each file is.
/// The files of `more` are where the bytes of their pages are in the traced code, as are the program and its libraries
/// in a recording that does not list what was mapped.
///
/// # Errors
/// If the kernel's symbols or one of `more` cannot be read.
pub(super) fn names_of(
    traced: &Traced,
    code: &[Section<'_>],
    sources: NameSources<'_>,
    files: &mut SymbolFiles,
) -> Result<TracedSymbols> {
    let NameSources { symfs, more, processes, notes } = sources;
    let mut changed = BTreeMap::new();
    let mut symbols = TracedSymbols::default();
    if traced.perf.is_some() || traced.part.as_ref().is_some_and(|part| part.pid.is_some()) {
        symbols.set_linux();
    }
    if let Some(perf) = &traced.perf {
        for section in &perf.code {
            let place = section.vaddr..section.vaddr.saturating_add(section.len);
            symbols.add_mapping(
                &MappedPart { file: &section.file, offset: section.offset, place },
                symfs,
                files,
            );
        }
        let kernel = perf.kallsyms.as_ref().map(|file| files.kernel(file)).transpose()?;
        symbols.add_kernel(kernel.unwrap_or_default(), perf.made.clone(), &perf.kernel);
    } else {
        changed = add_program(&mut symbols, traced, code, files);
    }
    let folders: Vec<PathBuf> =
        traced.trace.ancestors().skip(1).take(FOLDERS).map(Path::to_path_buf).collect();
    for pid in processes {
        symbols.add_runtime(*pid, &folders, symfs.unwrap_or(Path::new("/")), files);
    }
    for file in more {
        let what = || format!("--symbols {}", file.display());
        let fits = symbols.add_by_bytes(file, code, files).with_context(what)?.is_some();
        notes.into_iter().for_each(|notes| notes.symbols(file, fits));
    }
    for (file, found) in &changed {
        // Those of `more` have taken its place, if they are copies of it.
        let is_other = |ip| symbols.file_at(ip).is_some_and(|path| path != file);
        let is_copied = || found.other.map_or(!more.is_empty(), is_other);
        if let Some(notes) = notes.filter(|_| !is_copied()) {
            notes.changed(file, found);
        }
    }
    Ok(symbols)
}

/// Adds what a recording has mapped, or its program and what that needs if it does not list that. Returns the files
/// that are not what was recorded.
fn add_program(
    symbols: &mut TracedSymbols,
    traced: &Traced,
    code: &[Section<'_>],
    files: &mut SymbolFiles,
) -> BTreeMap<PathBuf, ChangedFile> {
    let mapped = traced.image.as_ref().and_then(|image| image::mapped(image).ok()).unwrap_or_default();
    let mut changed = BTreeMap::new();
    if mapped.is_empty() {
        add_by_bytes(symbols, traced, code, files, &mut changed);
    } else {
        let compared = compared(&mapped, code);
        for ImageSection { file, offset, len, vaddr } in &mapped {
            let place = *vaddr..vaddr.saturating_add(*len);
            let is_in = |section: &Section<'_>| {
                place.start < section.base.saturating_add(section.bytes.len() as u64)
                    && section.base < place.end
            };
            let is_code = code.iter().any(is_in);
            match compared.get(file) {
                Some(ChangedFile { pages, same, .. }) if is_code && is_most(*same, *pages) => {
                    symbols.add_mapping(&MappedPart { file, offset: *offset, place }, None, files);
                }
                _ => symbols.add_name(file, place),
            }
        }
        changed = compared.into_iter().filter(|(_, found)| found.other.is_some()).collect();
    }
    if traced.part.is_some() {
        symbols.add_vdso(code);
    }
    changed
}

/// Adds the program of a recording that does not list what was mapped, and the libraries that it needs.
fn add_by_bytes(
    symbols: &mut TracedSymbols,
    traced: &Traced,
    code: &[Section<'_>],
    files: &mut SymbolFiles,
    changed: &mut BTreeMap<PathBuf, ChangedFile>,
) {
    let (mut seen, mut found) = (BTreeSet::new(), false);
    let mut left: Vec<PathBuf> = LINKERS.iter().map(PathBuf::from).collect();
    let program = traced.part.as_ref().and_then(|part| part.exe.clone()).map(PathBuf::from);
    left.extend(program.clone());
    while let Some(file) = left.pop() {
        if !fs::canonicalize(&file).is_ok_and(|file| seen.insert(file)) {
            continue;
        }
        // A file that has changed since has no names for this code.
        let needed = symbols.add_by_bytes(&file, code, files).ok().flatten();
        found |= needed.is_some() && Some(&file) == program.as_ref();
        left.extend(needed.unwrap_or_default());
    }
    // The recording of a machine names the emulator as it was typed, and nothing that was executed is of that file.
    if let Some(program) = program.filter(|program| program.is_absolute() && !found && !code.is_empty()) {
        changed.insert(program, ChangedFile::default());
    }
}

/// Compares each page of the traced code with the file that was mapped there last.
fn compared(mapped: &[ImageSection], code: &[Section<'_>]) -> BTreeMap<PathBuf, ChangedFile> {
    let mut contents = BTreeMap::<&Path, Vec<u8>>::new();
    let mut compared = BTreeMap::<PathBuf, ChangedFile>::new();
    for section in code {
        let mut rest = section.bytes;
        let mut ip = section.base;
        while !rest.is_empty() {
            let to_next = usize::try_from(PAGE - ip % PAGE).unwrap_or(usize::MAX);
            let (page, after) = rest.split_at(rest.len().min(to_next));
            let is_there = |part: &&ImageSection| ip.checked_sub(part.vaddr).is_some_and(|at| at < part.len);
            if let Some(ImageSection { file, offset, vaddr, .. }) = mapped.iter().rev().find(is_there) {
                let bytes = contents.entry(file).or_insert_with(|| read_regular(file).unwrap_or_default());
                let from = usize::try_from((ip - vaddr).saturating_add(*offset)).unwrap_or(usize::MAX);
                // The last page of a file goes on with zeros.
                let own = bytes.get(from..).unwrap_or_default();
                let is_same = !own.is_empty() && page.starts_with(&own[..own.len().min(page.len())]);
                let found = compared.entry(file.clone()).or_default();
                found.pages += 1;
                found.same += usize::from(is_same);
                found.other = found.other.or((!is_same).then_some(ip));
            }
            (rest, ip) = (after, ip.wrapping_add(page.len() as u64));
        }
    }
    compared
}

/// Returns the place of a file that perf names, in the folder of such files if there is one.
pub(super) fn place_of(path: &Path, symfs: Option<&Path>) -> PathBuf {
    symfs.map_or_else(|| path.to_path_buf(), |folder| below(folder, path))
}
