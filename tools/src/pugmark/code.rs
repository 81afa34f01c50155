//! The traced code, from files.

use anyhow::{Context, Result, anyhow};
use object::{Object, ObjectSegment};
use pugmark_decoder_core::image::{AddressSpace, Section};
use serde::Deserialize;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// Sections that own their bytes.
#[derive(Clone, Debug, Default)]
pub struct Code {
    sections: Vec<(u64, Vec<u8>)>,
}

/// IMAGE.json.
#[derive(Deserialize)]
struct ImageFile {
    sections: Vec<ImageSection>,
}

#[derive(Deserialize)]
struct ImageSection {
    file: PathBuf,
    #[serde(default)]
    offset: u64,
    len: u64,
    vaddr: u64,
}

impl Code {
    /// The sections, for an image.
    #[must_use]
    pub fn sections(&self) -> Vec<Section<'_>> {
        self.sections
            .iter()
            .map(|(base, bytes)| Section { base: *base, bytes, space: AddressSpace::Any })
            .collect()
    }

    /// Adds bytes at an address.
    pub fn add(&mut self, base: u64, bytes: Vec<u8>) {
        self.sections.push((base, bytes));
    }

    /// Adds the sections of an image file; its files are beside it.
    ///
    /// # Errors
    /// When one of the files cannot be read, or is not what it should be.
    pub fn add_image(&mut self, path: &Path) -> Result<()> {
        let what = || format!("image {}", path.display());
        let text = fs::read(path).with_context(what)?;
        let image: ImageFile = serde_json::from_slice(&text).with_context(what)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut files: HashMap<PathBuf, Vec<u8>> = HashMap::new();
        for (number, section) in image.sections.iter().enumerate() {
            let ImageSection { file, offset, len, vaddr } = section;
            if !files.contains_key(file) {
                let bytes = fs::read(folder.join(file))
                    .with_context(|| format!("{}, section {number}: file {}", what(), file.display()))?;
                files.insert(file.clone(), bytes);
            }
            let range = usize::try_from(*offset).ok().zip(offset.checked_add(*len));
            let range = range.and_then(|(from, to)| Some(from..usize::try_from(to).ok()?));
            let bytes = range.and_then(|range| files.get(file)?.get(range)).ok_or_else(|| {
                anyhow!(
                    "{}, section {number}: {} has no {len:#x} bytes from {offset:#x} on",
                    what(),
                    file.display()
                )
            })?;
            self.add(*vaddr, bytes.to_vec());
        }
        Ok(())
    }

    /// Adds the segments of an ELF file, where they say or moved so that the lowest begins at `base`.
    ///
    /// # Errors
    /// When the file cannot be read, or is no object file.
    pub fn add_elf(&mut self, path: &Path, base: Option<u64>) -> Result<()> {
        let what = || format!("ELF file {}", path.display());
        let bytes = fs::read(path).with_context(what)?;
        let file = object::File::parse(&*bytes).with_context(what)?;
        let lowest = file.segments().map(|segment| segment.address()).min().unwrap_or_default();
        let moved = base.map_or(0, |base| base.wrapping_sub(lowest));
        for segment in file.segments() {
            let bytes = segment.data().with_context(what)?;
            if !bytes.is_empty() {
                self.add(segment.address().wrapping_add(moved), bytes.to_vec());
            }
        }
        Ok(())
    }

    /// Adds a file as it is.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn add_raw(&mut self, path: &Path, base: u64) -> Result<()> {
        self.add(base, fs::read(path).with_context(|| format!("raw file {}", path.display()))?);
        Ok(())
    }
}
