//! The code under the trace: `--raw` and `--elf`.

use super::elf;
use crate::file::FileRange;
use crate::number;
use pugmark_decoder_core::image::{AddressSpace, Section};
use std::fs;
use std::io::Write;

/// Code by address; what was added later hides what was added earlier.
#[derive(Clone, Debug, Default)]
pub struct Code {
    parts: Vec<Part>,
}

/// Contiguous code from a file.
#[derive(Clone, Debug)]
struct Part {
    base: u64,
    bytes: &'static [u8],
}

impl Code {
    /// The sections to decode from.
    pub fn sections(&self) -> Vec<Section<'static>> {
        let space = AddressSpace::Any;
        self.parts.iter().map(|part| Section { base: part.base, bytes: part.bytes, space }).collect()
    }

    /// Adds bytes that stay for the rest of the run: sections come and go while a trace is decoded, and nothing tells
    /// how long one is needed.
    pub fn add(&mut self, base: u64, bytes: Vec<u8>) {
        self.add_part(base, bytes.leak());
    }

    fn add_part(&mut self, base: u64, bytes: &'static [u8]) {
        self.parts.push(Part { base, bytes });
    }

    /// Adds `FILE[:FROM[-TO]]:BASE`.
    ///
    /// # Errors
    /// The lines to print.
    pub fn add_raw(&mut self, program: &str, argument: &str) -> Result<(), String> {
        let failed =
            |why: String, file: &str| format!("{program}: {why}\n{program}: --raw: failed to load '{file}'.");
        let base = argument.rsplit_once(':').and_then(|(file, base)| Some((file, number::parse(base)?)));
        let Some((file, base)) = base else {
            return Err(failed(format!("failed to parse base addressfrom '{argument}'."), argument));
        };
        let range: FileRange =
            file.parse().map_err(|_| failed(format!("bad file {file}: invalid argument."), file))?;
        let name = range.name.clone();
        let refused = |why: &str| failed(format!("failed to add {name} at 0x{base:x}: {why}."), &name);
        let bytes = fs::read(&range.name).map_err(|_| refused("bad file"))?;
        let bytes = part(&bytes, range.from, range.to).ok_or_else(|| refused("invalid argument"))?;
        self.add(base, bytes.to_vec());
        Ok(())
    }

    /// Adds `FILE[:BASE]`; tells `verbose` of each segment.
    ///
    /// # Errors
    /// The line to print.
    pub fn add_elf(
        &mut self,
        program: &str,
        argument: &str,
        mut verbose: Option<&mut dyn Write>,
    ) -> Result<(), String> {
        let base = argument.rsplit_once(':').and_then(|(file, base)| Some((file, number::parse(base)?)));
        let (file, base) = base.unwrap_or((argument, 0));
        let bytes = fs::read(file).map_err(|error| {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            format!("{program}: warning: failed to open {file}: {text}.")
        })?;
        let segments = elf::segments(&bytes)
            .ok_or_else(|| format!("{program}: warning: ignoring {file}: not an ELF file."))?;
        // Once for all segments, which may overlap.
        let bytes: &'static [u8] = bytes.leak();
        let lowest = segments.iter().map(|segment| segment.vaddr).min().unwrap_or(0);
        let shift = if base == 0 { 0 } else { base.wrapping_sub(lowest) };
        for segment in segments {
            if let Some(out) = &mut verbose {
                // A reader that has seen enough is no error.
                let _ = writeln!(
                    out,
                    "{file}: offset=0x{:x} size=0x{:x} vaddr=0x{:x}.",
                    segment.offset, segment.size, segment.vaddr
                );
            }
            let to = segment.offset.saturating_add(segment.size);
            if let Some(bytes) = part(bytes, segment.offset, Some(to)) {
                self.add_part(segment.vaddr.wrapping_add(shift), bytes);
            }
        }
        Ok(())
    }
}

/// The bytes from `from` up to `to`, as far as there are any.
fn part(bytes: &[u8], from: u64, to: Option<u64>) -> Option<&[u8]> {
    let from = usize::try_from(from).ok()?;
    let to = to.map_or(bytes.len(), |to| usize::try_from(to).unwrap_or(usize::MAX).min(bytes.len()));
    bytes.get(from..to).filter(|bytes| !bytes.is_empty())
}
