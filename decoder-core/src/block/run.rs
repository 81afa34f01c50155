//! Straight-line code up to the first branch.

use crate::{
    error::ErrorKind,
    flow::{Way, fetch},
    image::{Asid, Image, Section, Window},
    insn,
    mode::ExecMode,
};

/// Straight-line code: every instruction behind the first follows the one before it, and only the last may branch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// Where a direct branch at the end goes when it is taken.
    pub(super) target: u64,
    /// The section that the first byte is in.
    pub(super) section: u32,
    /// From the first byte to the last instruction's, and to the byte behind that.
    pub(super) last: u16,
    pub(super) span: u16,
    /// How many instructions; 0 in a slot that is not in use.
    pub(super) insns: u8,
    /// How the walk goes on behind the last one.
    pub(super) end: Way,
    mode: u8,
    /// The last instruction's bytes are not all in the section.
    pub(super) truncated: bool,
}

/// Instructions of a run: few enough for its length to fit.
const MOST: u8 = 250;

impl Run {
    /// Decodes the code from `ip` on: at least one instruction, up to a branch or what is no instruction.
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
                // What is wrong here, or where it goes on, is found out when the walk comes here.
                Err(_) => return Ok(run),
            };
        }
    }

    /// Whether it was decoded as code of this mode.
    #[inline]
    pub(super) const fn is_of(&self, mode: ExecMode) -> bool {
        self.mode == mode as u8
    }
}

/// Whether some bytes of an instruction that begins in `window` are elsewhere; what begins in no section is whole.
#[inline]
pub(crate) fn is_truncated(window: &Window<'_>, ip: u64, insn: &insn::Insn) -> bool {
    !window.bytes.is_empty() && window.from(ip).len() < usize::from(insn.len)
}

/// Which of the image's sections a window is a part of.
pub(crate) fn section_of(image: Image<'_>, window: &Window<'_>) -> u32 {
    let start = window.bytes.as_ptr();
    let holds = |section: &Section<'_>| {
        section.bytes.as_ptr_range().contains(&start)
            && section.base.wrapping_add((start as usize - section.bytes.as_ptr() as usize) as u64)
                == window.base
    };
    // A later section is in front of an earlier one.
    image.sections().iter().rposition(holds).map_or(u32::MAX, |index| index as u32)
}
