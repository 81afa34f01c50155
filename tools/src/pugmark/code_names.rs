//! The names of the code that was traced: of what perf's file says was mapped, or of the files that a recording names.

use super::recording::Traced;
use crate::code::image::{self, ImageSection};
use crate::file::below;
use crate::symbols::{MappedPart, SymbolFiles, TracedSymbols};
use anyhow::{Context, Result};
use pugmark_decoder_core::image::Section;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The dynamic linker of 64-bit programs, which the programs' files do not name among their libraries.
const LINKERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"];
/// The number of folders above a trace in which copies of what runtimes have listed may be.
const FOLDERS: usize = 2;

/// Where names come from besides the trace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameSources<'a> {
    /// The folder with the files that perf names.
    pub(super) symfs: Option<&'a Path>,
    /// Files that have names, too.
    pub(super) more: &'a [PathBuf],
    /// The processes that have the code.
    pub(super) processes: &'a [i32],
}

/// Finds the names of a trace's code. The mappings in a file of `perf record` say where each file is. A recording names
/// the program; it, its libraries and the files of `more` are where the bytes of their pages are in the traced code.
///
/// # Errors
/// If the kernel's symbols or one of `more` cannot be read, or one of those is not the code that was traced.
pub(super) fn names_of(
    traced: &Traced,
    code: &[Section<'_>],
    sources: NameSources<'_>,
    files: &mut SymbolFiles,
) -> Result<TracedSymbols> {
    let NameSources { symfs, more, processes } = sources;
    let mut symbols = TracedSymbols::default();
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
        add_program(&mut symbols, traced, code, files);
    }
    let folders: Vec<PathBuf> =
        traced.trace.ancestors().skip(1).take(FOLDERS).map(Path::to_path_buf).collect();
    for pid in processes {
        symbols.add_runtime(*pid, &folders, symfs.unwrap_or(Path::new("/")), files);
    }
    for file in more {
        let what = || format!("--symbols {}", file.display());
        symbols.add_by_bytes(file, code, files).with_context(what)?;
    }
    Ok(symbols)
}

/// Adds the program of a recording, what it needs, and what it has mapped besides.
fn add_program(symbols: &mut TracedSymbols, traced: &Traced, code: &[Section<'_>], files: &mut SymbolFiles) {
    let mut seen = BTreeSet::new();
    let mut left: Vec<PathBuf> = LINKERS.iter().map(PathBuf::from).collect();
    let mapped = traced.image.as_ref().and_then(|image| image::mapped(image).ok()).unwrap_or_default();
    for ImageSection { file, len, vaddr, .. } in mapped {
        symbols.add_name(&file, vaddr..vaddr.saturating_add(len));
        left.push(file);
    }
    left.extend(traced.part.as_ref().and_then(|part| part.exe.clone()).map(PathBuf::from));
    while let Some(file) = left.pop() {
        if fs::canonicalize(&file).is_ok_and(|file| seen.insert(file)) {
            // A file that has changed since has no names for this code.
            left.extend(symbols.add_by_bytes(&file, code, files).unwrap_or_default());
        }
    }
    if traced.part.is_some() {
        symbols.add_vdso(code);
    }
}

/// Returns the place of a file that perf names, in the folder of such files if there is one.
pub(super) fn place_of(path: &Path, symfs: Option<&Path>) -> PathBuf {
    symfs.map_or_else(|| path.to_path_buf(), |folder| below(folder, path))
}
