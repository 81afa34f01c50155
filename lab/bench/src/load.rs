//! The input of a measurement: a trace and its code.

use anyhow::{Context, Result};
use pugmark_decoder_core::image::{AddressSpace, Section};
use pugmark_harness::libipt_speed::FileSection;
use std::{fs, path::Path};

/// A trace and its code.
pub(super) struct Load {
    pub(super) name: String,
    pub(super) trace: Vec<u8>,
    pub(super) code: Vec<(u64, Vec<u8>)>,
    pub(super) files: Vec<FileSection>,
    /// True if the trace has timing packets.
    pub(super) timing: bool,
}

impl Load {
    /// Returns the sections of the code.
    pub(super) fn sections(&self) -> Vec<Section<'_>> {
        self.code
            .iter()
            .map(|(base, bytes)| Section { base: *base, bytes, space: AddressSpace::Any })
            .collect()
    }
}

/// Reads a recorded trace and its code: `{"sections":[{"file","offset","len","vaddr"}]}`, with the files beside it.
pub(super) fn recorded_load(name: &str, trace: &Path, image: &Path, timing: bool) -> Result<Load> {
    let bytes = fs::read(trace).with_context(|| format!("trace {}", trace.display()))?;
    let text = fs::read_to_string(image).with_context(|| format!("image {}", image.display()))?;
    let image_json: serde_json::Value = serde_json::from_str(&text)?;
    let folder = image.parent().unwrap_or(Path::new(""));
    let (mut code, mut files) = (vec![], vec![]);
    for section in image_json["sections"].as_array().context("no sections in the image")? {
        let number =
            |field: &str| section[field].as_u64().with_context(|| format!("no {field} in a section"));
        let file = folder.join(section["file"].as_str().context("no file in a section")?);
        let (offset, len, base) = (number("offset")?, number("len")?, number("vaddr")?);
        let contents = fs::read(&file).with_context(|| format!("{}", file.display()))?;
        let range = offset as usize..(offset + len) as usize;
        let part = contents.get(range).context("a section of the image reaches beyond its file's end")?;
        code.push((base, part.to_vec()));
        files.push(FileSection { file, offset, len, base });
    }
    Ok(Load { name: name.into(), trace: bytes, code, files, timing })
}
