//! Reads `image.json`, which says which part of which file was mapped where.

use crate::file::read_regular;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A part of a file at an address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ImageSection {
    /// The file's path, relative to the image's folder.
    pub file: PathBuf,
    /// The part's offset in the file.
    #[serde(default)]
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
    /// The address of the first byte.
    pub vaddr: u64,
}

#[derive(Deserialize)]
struct ImageFile {
    sections: Vec<ImageSection>,
    /// The files that were mapped, if the recorder has noted them.
    #[serde(default)]
    mapped: Vec<ImageSection>,
}

/// Reads the sections of `{"sections":[{"file","offset","len","vaddr"}]}`.
///
/// # Errors
/// If the file cannot be read, or does not have this form.
pub fn read(path: &Path) -> Result<Vec<ImageSection>> {
    Ok(parse(path)?.sections)
}

/// Reads which files a recorded program had mapped as code, in the order in which it did: `"mapped"` beside the
/// sections, with the same fields. Empty if the image says nothing of that.
///
/// # Errors
/// As [`read`].
pub fn mapped(path: &Path) -> Result<Vec<ImageSection>> {
    Ok(parse(path)?.mapped)
}

fn parse(path: &Path) -> Result<ImageFile> {
    let what = || format!("image {}", path.display());
    let text = read_regular(path).with_context(what)?;
    serde_json::from_slice(&text).with_context(what)
}
