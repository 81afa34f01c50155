//! Checks that two traces are of the same code: otherwise one address means two things, and comparing the traces is
//! meaningless.

use super::{CountedFile, CoveredLane, blocks::Piece};
use crate::symbols;
use anyhow::{Context, Result, bail, ensure};
use pugmark_decoder_core::image::Section;
use std::path::Path;

/// The code that came with a trace.
pub(super) struct CodeOf<'a> {
    /// The trace, as the user has named it.
    pub(super) trace: &'a Path,
    pub(super) parts: &'a [CoveredLane],
}

impl CodeOf<'_> {
    fn sections(&self) -> Vec<Section<'_>> {
        self.parts.iter().flat_map(|lane| lane.code.sections()).collect()
    }

    /// Returns true if this is the program that was recorded.
    fn is_program(&self, of: &Path) -> bool {
        let exe = |lane: &CoveredLane| Some(Path::new(lane.traced.part.as_ref()?.exe.as_ref()?) == of);
        self.parts.iter().filter_map(exe).any(|same| same)
    }
}

/// Checks that the code of a file is the same in both traces, and at the same addresses; `option` names the other one.
/// A trace whose code has no part of the file passes: it did not execute the file.
///
/// # Errors
/// If the code is not the same.
pub(super) fn check(option: &str, of: &CountedFile, new: &CodeOf<'_>, old: &CodeOf<'_>) -> Result<()> {
    let file = object::File::parse(&*of.bytes).with_context(|| of.path.display().to_string())?;
    let moved = old.parts.iter().find_map(|lane| symbols::moved(&file, &lane.code.sections()));
    let (of_path, of_old) = (of.path.display(), old.trace.display());
    match moved {
        None => ensure!(
            !old.is_program(&of.path),
            "{option}: {of_path} has changed since {of_old} was recorded, and not since {} was: \
             compare traces of one build",
            new.trace.display()
        ),
        Some(moved) => ensure!(
            moved == of.moved,
            "{option}: {of_path} is loaded at {:#x} in {} and at {moved:#x} in {of_old}: record it at one address, as \
             `pugmark record` does without --aslr, or `setarch -R perf record`",
            of.moved,
            new.trace.display()
        ),
    }
    let (new_sections, old_sections) = (new.sections(), old.sections());
    for piece in &of.blocks.pieces {
        if let (Some(new), Some(old)) = (bytes_of(&new_sections, piece), bytes_of(&old_sections, piece))
            && new != old
        {
            bail!(
                "{option}: {} at {:#x} is not the same code in both traces: compare traces of one build",
                piece.name,
                piece.addresses.start
            );
        }
    }
    Ok(())
}

/// Returns the bytes at the addresses of a piece, if a single section has all of them.
fn bytes_of<'a>(sections: &[Section<'a>], piece: &Piece) -> Option<&'a [u8]> {
    // A later section hides an earlier one.
    sections.iter().rev().find_map(|section| {
        let from = usize::try_from(piece.addresses.start.checked_sub(section.base)?).ok()?;
        let len = usize::try_from(piece.addresses.end - piece.addresses.start).ok()?;
        section.bytes.get(from..from.checked_add(len)?)
    })
}
