//! The section that code is in.

use crate::{
    image::{Image, Window},
    insn,
};

/// Returns true if some bytes of an instruction that begins in `window` are outside of it. An instruction that begins
/// in no section counts as complete.
#[inline]
pub(crate) fn is_truncated(window: &Window<'_>, ip: u64, insn: &insn::Insn) -> bool {
    !window.bytes.is_empty() && window.from(ip).len() < usize::from(insn.len)
}

/// Returns the index of the image's section that a window is a part of.
pub(crate) fn section_of(image: Image<'_>, window: &Window<'_>) -> u32 {
    image.section_of(window).map_or(u32::MAX, |index| index as u32)
}
