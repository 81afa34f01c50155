//! Straight-line code up to the first branch.

use crate::{
    error::ErrorKind,
    flow::{Way, fetch},
    image::{Asid, Image, Section, Window},
    insn,
    mode::ExecMode,
};

/// Straight-line code: every instruction after the first follows the one before it in memory, and only the last may
/// branch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// Where a direct branch at the end goes when it is taken.
    pub(super) target: u64,
    /// The section that the first byte is in.
    pub(super) section: u32,
    /// The distance from the first byte to the last instruction, and to the byte after it.
    pub(super) last: u16,
    pub(super) span: u16,
    /// How many instructions there are; 0 in an unused slot.
    pub(super) insns: u8,
    /// How the walk continues after the last instruction.
    pub(super) end: Way,
    mode: u8,
    /// The last instruction's bytes are not all in the section.
    pub(super) truncated: bool,
}

/// The most instructions of a run, so that its length fits into 16 bits.
const MOST: u8 = 250;

impl Run {
    /// Decodes the code from `ip` on: at least one instruction, up to a branch or to bytes that are no instruction.
    pub(super) fn decode(image: Image<'_>, space: Asid, ip: u64, mode: ExecMode) -> Result<Self, ErrorKind> {
        let (window, mut insn) = fetch(image, space, Window::default(), ip, mode)?;
        let truncated = is_truncated(&window, ip, &insn);
        let mut run =
            Self { section: section_of(image, &window), mode: mode as u8, truncated, ..Self::default() };
        loop {
            run.last = run.span;
            run.span += u16::from(insn.len);
            run.insns += 1;
            run.target = insn.target.unwrap_or_default();
            let next = ip.wrapping_add(u64::from(run.span));
            run.end = Way::behind(&insn, next);
            if run.end != Way::On || run.truncated || run.insns == MOST {
                return Ok(run);
            }
            insn = match insn::decode(window.from(next), mode, next) {
                Ok(insn) => insn,
                // The walk finds out what is here when it comes here.
                Err(_) => return Ok(run),
            };
        }
    }

    /// Whether the run was decoded as code of this mode.
    #[inline]
    pub(super) const fn is_of(&self, mode: ExecMode) -> bool {
        self.mode == mode as u8
    }
}

/// Whether some bytes of an instruction that begins in `window` are outside of it. An instruction that begins in no
/// section counts as complete.
#[inline]
pub(crate) fn is_truncated(window: &Window<'_>, ip: u64, insn: &insn::Insn) -> bool {
    !window.bytes.is_empty() && window.from(ip).len() < usize::from(insn.len)
}

/// The index of the image's section that a window is a part of.
pub(crate) fn section_of(image: Image<'_>, window: &Window<'_>) -> u32 {
    let start = window.bytes.as_ptr();
    let holds = |section: &Section<'_>| {
        section.bytes.as_ptr_range().contains(&start)
            && section.base.wrapping_add((start as usize - section.bytes.as_ptr() as usize) as u64)
                == window.base
    };
    // A later section hides an earlier one.
    image.sections().iter().rposition(holds).map_or(u32::MAX, |index| index as u32)
}
