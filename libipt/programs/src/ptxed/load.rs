//! Loads the traced code for `--raw`, `--elf`, `--image` and `--pevent:kcore`.

use crate::args::{ElfHeader, UsageError};
use crate::code::{CacheError, MappedSection, SectionCache};
use crate::file::{FileError, FileRange};
use crate::text;
use object::ReadCache;
use pugmark_tools::{
    code::{
        elf::{self, ElfError},
        image,
    },
    number,
};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Adds the file of `FILE[:FROM[-TO]]:BASE` to the end of `parts`.
///
/// # Errors
/// The error, and the part of the argument that names the file.
pub(super) fn raw(
    argument: &str,
    parts: &mut Vec<MappedSection>,
    cache: &mut SectionCache,
) -> Result<(), (UsageError, String)> {
    let Some((file, base)) = split_base(argument) else {
        return Err((UsageError::NoBase(argument.into()), argument.into()));
    };
    let range: FileRange =
        file.parse().map_err(|_| (UsageError::File(FileError::EmptyRange(file.into())), file.into()))?;
    let len = range.to.map_or(u64::MAX, |to| to - range.from);
    match cache.add(range.name.as_ref(), range.from, len) {
        Ok(section) => parts.push(MappedSection { base, section }),
        Err(error) => {
            let error = text::of_cache(&error);
            return Err((UsageError::Add { file: range.name.clone(), base, error }, range.name));
        }
    }
    Ok(())
}

/// Adds the sections of a recording's image.
///
/// # Errors
/// If the image or one of its files cannot be read.
pub(super) fn image(
    path: &Path,
    parts: &mut Vec<MappedSection>,
    cache: &mut SectionCache,
) -> Result<(), UsageError> {
    let failed = |file: &Path, error: String| UsageError::Image { file: file.display().to_string(), error };
    let sections = image::read(path).map_err(|error| failed(path, error.root_cause().to_string()))?;
    for section in sections {
        let file = path.with_file_name(section.file);
        let added = cache.add(&file, section.offset, section.len);
        let section_id = added.map_err(|error| failed(&file, text::of_cache(&error).into()))?;
        parts.push(MappedSection { base: section.vaddr, section: section_id });
    }
    Ok(())
}

/// Loads the segments of an ELF file and reports on them.
pub(super) struct ElfLoader<'a> {
    pub(super) program: &'a str,
    pub(super) parts: &'a mut Vec<MappedSection>,
    pub(super) cache: &'a mut SectionCache,
    /// Receives a line for each segment that was loaded.
    pub(super) verbose: Option<&'a mut dyn Write>,
    /// Receives a line for each segment that cannot be loaded.
    pub(super) warnings: &'a mut dyn Write,
}

impl ElfLoader<'_> {
    /// Adds the segments of `FILE[:BASE]`.
    ///
    /// # Errors
    /// The reason that loading stopped.
    pub(super) fn load(&mut self, argument: &str) -> Result<(), UsageError> {
        let (name, base) = split_base(argument).unwrap_or((argument, 0));
        let open = |error: io::Error| UsageError::NoElf { file: name.into(), error: text::of_system(&error) };
        let file = File::open(name).map_err(open)?;
        let is_folder = file.metadata().map_err(open)?.is_dir();
        let cut = |header| UsageError::CutElf { file: name.into(), header, is_folder };
        let segments = elf::segments(&ReadCache::new(file)).map_err(|error| match error {
            ElfError::NotElf => UsageError::NotElf(name.into()),
            ElfError::Class(class) => UsageError::ElfClass(class),
            ElfError::NoIdentification => cut(ElfHeader::Identification),
            ElfError::FileHeader => cut(ElfHeader::File),
            ElfError::Table(_) => UsageError::ElfTable(name.into()),
        })?;
        let cut = segments.cut.map_or(Ok(()), |number| Err(cut(ElfHeader::Program(number))));
        let shift = segments.shift(base);
        if base != 0 {
            // Without the headers after the cut, the lowest address is unknown.
            cut.clone()?;
        }
        let mut any = false;
        for segment in &segments.loaded {
            match self.cache.add(Path::new(name), segment.offset, segment.size) {
                Ok(section) => {
                    self.parts.push(MappedSection { base: segment.vaddr.wrapping_add(shift), section });
                    any = true;
                    self.tell(name, segment);
                }
                Err(error) => self.warn(name, Some((segment.number, &error))),
            }
        }
        cut?;
        if !any {
            self.warn(name, None);
        }
        Ok(())
    }

    // Errors on writing are ignored: a closed pipe is no error.

    fn tell(&mut self, name: &str, segment: &elf::Segment) {
        let elf::Segment { offset, size, vaddr, .. } = segment;
        if let Some(out) = &mut self.verbose {
            let _ = writeln!(out, "{name}: offset={offset:#x} size={size:#x} vaddr={vaddr:#x}.");
        }
    }

    fn warn(&mut self, name: &str, segment: Option<(u16, &CacheError)>) {
        let program = self.program;
        let _ = match segment {
            Some((number, error)) => writeln!(
                self.warnings,
                "{program}: warning: {name}: failed to create section for phdr {number}: {}.",
                text::of_cache(error)
            ),
            None => writeln!(self.warnings, "{program}: warning: {name}: did not find any load sections."),
        };
    }
}

/// Splits at the last colon, if a number follows it.
fn split_base(argument: &str) -> Option<(&str, u64)> {
    let (file, base) = argument.rsplit_once(':')?;
    Some((file, number::parse(base)?))
}
