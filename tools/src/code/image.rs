//! Reads `image.json`, which says which part of which file was mapped where.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
};

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
}

/// Reads the sections of `{"sections":[{"file","offset","len","vaddr"}]}`.
///
/// # Errors
/// If the file cannot be read, or does not have this form.
pub fn read(path: &Path) -> Result<Vec<ImageSection>> {
    let what = || format!("image {}", path.display());
    let text = fs::read(path).with_context(what)?;
    Ok(serde_json::from_slice::<ImageFile>(&text).with_context(what)?.sections)
}
