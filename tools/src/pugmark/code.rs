//! The traced code, read from files.

use crate::code::image::{self, ImageSection};
use crate::file::read_regular;
use anyhow::{Context, Result, anyhow};
use object::{Object, ObjectSegment};
use pugmark_decoder_core::image::{AddressSpace, Section};
use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Files that were read, by name, for several [`TracedCode`]s that have the same files.
pub type CodeFiles = HashMap<PathBuf, Arc<Vec<u8>>>;

/// Sections that own their bytes.
#[derive(Clone, Debug, Default)]
pub struct TracedCode {
    /// The contents of each file; several sections can be of the same file.
    files: Vec<Arc<Vec<u8>>>,
    sections: Vec<FileSection>,
}

/// The address of a section, the index of its file, and its bytes in the file.
#[derive(Clone, Debug)]
struct FileSection {
    base: u64,
    file: usize,
    range: Range<usize>,
}

impl FileSection {
    fn end(&self) -> u64 {
        self.base.saturating_add(self.range.len() as u64)
    }

    /// Adds the section's parts outside of ranges of addresses, which are in order and apart, to `parts`.
    fn without(self, ranges: &[Range<u64>], parts: &mut Vec<Self>) {
        let Self { base, file, range: Range { start, end } } = self;
        let (last, mut from) = (self.end(), base);
        let mut add = |from: u64, to: u64| {
            let at = |address: u64| (start + (address - base) as usize).min(end);
            if from < to {
                parts.push(Self { base: from, file, range: at(from)..at(to) });
            }
        };
        let first = ranges.partition_point(|range| range.end <= base);
        for hole in ranges[first..].iter().take_while(|range| range.start < last) {
            add(from, hole.start);
            from = hole.end;
        }
        add(from, last);
    }
}

/// Returns the ranges of addresses that follow one another without a gap.
fn runs(bytes: &BTreeMap<u64, u8>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = vec![];
    // The last address of all has none after it.
    for (address, next) in bytes.keys().filter_map(|address| Some((*address, address.checked_add(1)?))) {
        match runs.last_mut() {
            Some(last) if last.end == address => last.end = next,
            _ => runs.push(address..next),
        }
    }
    runs
}

impl TracedCode {
    /// Returns the sections, from which an image can be made.
    #[must_use]
    pub fn sections(&self) -> Vec<Section<'_>> {
        let bytes = |part: &FileSection| self.files.get(part.file)?.get(part.range.clone());
        let section = |part: &FileSection| {
            Some(Section { base: part.base, bytes: bytes(part)?, space: AddressSpace::Any })
        };
        self.sections.iter().filter_map(section).collect()
    }

    /// Adds bytes at an address.
    pub fn add(&mut self, base: u64, bytes: Vec<u8>) {
        let range = 0..bytes.len();
        let file = self.add_file(bytes.into());
        self.sections.push(FileSection { base, file, range });
    }

    fn add_file(&mut self, bytes: Arc<Vec<u8>>) -> usize {
        self.files.push(bytes);
        self.files.len() - 1
    }

    /// Adds the sections of an image file. Their files are relative to the image's folder.
    ///
    /// # Errors
    /// If one of the files cannot be read, or does not have the form it should have.
    pub fn add_image(&mut self, path: &Path) -> Result<()> {
        let what = || format!("image {}", path.display());
        let (folder, known) = (path.parent().unwrap_or(Path::new("")), &mut CodeFiles::new());
        self.add_sections(folder, &image::read(path)?, known, &what())
    }

    /// Adds parts of files, whose paths are relative to `folder`. `read` has files that were read before, and gets
    /// those that are read. `what` names who lists them.
    ///
    /// # Errors
    /// If one of the files cannot be read, or is too short.
    pub fn add_sections(
        &mut self,
        folder: &Path,
        sections: &[ImageSection],
        read: &mut CodeFiles,
        what: &str,
    ) -> Result<()> {
        let mut files: HashMap<&Path, usize> = HashMap::new();
        for (number, section) in sections.iter().enumerate() {
            let ImageSection { file, offset, len, vaddr } = section;
            let known = match files.entry(file) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    let path = folder.join(file);
                    let bytes = match read.get(&path) {
                        Some(bytes) => bytes.clone(),
                        None => {
                            let bytes = read_regular(&path).with_context(|| {
                                format!("{what}, section {number}: file {}", file.display())
                            })?;
                            read.entry(path).or_insert(bytes.into()).clone()
                        }
                    };
                    *new.insert(self.add_file(bytes))
                }
            };
            let range = usize::try_from(*offset).ok().zip(offset.checked_add(*len));
            let range = range.and_then(|(from, to)| Some(from..usize::try_from(to).ok()?));
            let range = range.filter(|range| self.files[known].get(range.clone()).is_some());
            let range = range.ok_or_else(|| {
                let (file, has) = (file.display(), self.files[known].len());
                let wants = format!("{len:#x} bytes from offset {offset:#x} of {file}");
                anyhow!("{what}, section {number}: wants {wants}, which has {has:#x} in all")
            })?;
            self.sections.push(FileSection { base: *vaddr, file: known, range });
        }
        Ok(())
    }

    /// Replaces bytes by address, also those that are in no section.
    pub fn patch(&mut self, bytes: &BTreeMap<u64, u8>) {
        let runs = runs(bytes);
        if runs.is_empty() {
            return;
        }
        let file = self.add_file(bytes.values().copied().collect::<Vec<_>>().into());
        let mut sections = vec![];
        for section in std::mem::take(&mut self.sections) {
            section.without(&runs, &mut sections);
        }
        let mut from = 0;
        for run in runs {
            let range = from..from + (run.end - run.start) as usize;
            from = range.end;
            sections.push(FileSection { base: run.start, file, range });
        }
        // In their order they are found by halving. Where some are over others, that must stay so.
        let mut ordered = sections.clone();
        ordered.sort_by_key(|section| section.base);
        let are_apart = ordered.windows(2).all(|pair| pair[0].end() <= pair[1].base);
        self.sections = if are_apart { ordered } else { sections };
    }

    /// Adds the segments of an ELF file, at their own addresses or moved so that the lowest begins at `base`.
    ///
    /// # Errors
    /// If the file cannot be read, or is not an object file.
    pub fn add_elf(&mut self, path: &Path, base: Option<u64>) -> Result<()> {
        let what = || format!("ELF file {}", path.display());
        let bytes = read_regular(path).with_context(what)?;
        self.add_elf_bytes(bytes, base).with_context(what)
    }

    /// Adds the segments of an ELF file that was read already, like [`add_elf`](Self::add_elf).
    ///
    /// # Errors
    /// If it is not an object file.
    pub fn add_elf_bytes(&mut self, bytes: Vec<u8>, base: Option<u64>) -> Result<()> {
        let file = object::File::parse(&*bytes)?;
        let lowest = file.segments().map(|segment| segment.address()).min().unwrap_or_default();
        let moved = base.map_or(0, |base| base.wrapping_sub(lowest));
        let number = self.files.len();
        let mut parts = vec![];
        for segment in file.segments() {
            let data = segment.data()?;
            if !data.is_empty() {
                let from = usize::try_from(segment.file_range().0)?;
                let range = from..from + data.len();
                parts.push(FileSection { base: segment.address().wrapping_add(moved), file: number, range });
            }
        }
        self.sections.append(&mut parts);
        self.add_file(bytes.into());
        Ok(())
    }

    /// Adds a raw file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn add_raw(&mut self, path: &Path, base: u64) -> Result<()> {
        self.add(base, read_regular(path).with_context(|| format!("raw file {}", path.display()))?);
        Ok(())
    }
}
