//! `image.json`: which part of which file was where.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A part of a file at an address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ImageSection {
    /// The file, from the image's folder.
    pub file: PathBuf,
    /// Where in the file.
    #[serde(default)]
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// The address of the first.
    pub vaddr: u64,
}

#[derive(Deserialize)]
struct ImageFile {
    sections: Vec<ImageSection>,
}

/// The sections of `{"sections":[{"file","offset","len","vaddr"}]}`.
///
/// # Errors
/// When the file cannot be read, or is not such.
pub fn read(path: &Path) -> Result<Vec<ImageSection>> {
    let what = || format!("image {}", path.display());
    let text = fs::read(path).with_context(what)?;
    Ok(serde_json::from_slice::<ImageFile>(&text).with_context(what)?.sections)
}
