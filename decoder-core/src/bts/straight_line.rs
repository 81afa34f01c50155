//! Straight-line code: the instructions between two records, without a taken branch among them.

use super::ModeRange;
use crate::{
    ErrorKind,
    block::{Block, is_truncated, section_of},
    flow::fetch,
    image::{Image, Window},
    insn::{self, Class, Insn},
    mode::ExecMode,
};

/// Maximum length of straight-line code, to bound the work for one record.
const LONGEST: u64 = 1 << 20;

/// A reader of straight-line code in an image.
#[derive(Clone, Debug)]
pub(super) struct StraightLines<'a> {
    image: Image<'a>,
    cr3: Option<u64>,
    mode: ExecMode,
    modes: &'a [ModeRange],
    /// The part of the image that the last instruction came from, and the number of its section.
    window: Window<'a>,
    section: u32,
}

/// The first block of straight-line code that leads to its goal.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstBlock {
    /// The block without the instruction at the goal; it may be empty.
    pub(super) block: Block,
    /// The end of the block: the goal, or a border that a block must not cross.
    pub(super) next: u64,
}

/// The place where straight-line code ends before its goal.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyEnd {
    pub(super) ip: u64,
    pub(super) cause: EndCause,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EndCause {
    /// At an instruction that always branches.
    Branch(Insn),
    /// No instruction of the straight-line code begins at the goal: the goal is at a lower address, within an
    /// instruction, or too far away.
    Missed,
    /// The image has no code there, or the bytes are no instruction.
    Code(ErrorKind),
}

/// An instruction, with the mode and section of its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeInsn {
    pub(super) insn: Insn,
    mode: ExecMode,
    section: u32,
    truncated: bool,
}

impl<'a> StraightLines<'a> {
    pub(super) fn new(image: Image<'a>, cr3: Option<u64>, mode: ExecMode, modes: &'a [ModeRange]) -> Self {
        Self { image, cr3, mode, modes, window: Window::default(), section: u32::MAX }
    }

    pub(super) fn image(&self) -> Image<'a> {
        self.image
    }

    pub(super) fn cr3(&self) -> Option<u64> {
        self.cr3
    }

    /// Follows the straight-line code from `at` to `goal`.
    pub(super) fn reach(&mut self, at: u64, goal: u64) -> Result<FirstBlock, EarlyEnd> {
        let missed = EarlyEnd { ip: at, cause: EndCause::Missed };
        let distance = goal.checked_sub(at).ok_or(missed)?;
        if distance > LONGEST {
            return Err(missed);
        }
        let mut first = FirstBlock { block: self.empty(at), next: at };
        let mut ip = at;
        let mut closed = false;
        while ip != goal {
            let found = self.insn_at(ip).map_err(|error| EarlyEnd { ip, cause: EndCause::Code(error) })?;
            if always_branches(found.insn.class) {
                return Err(EarlyEnd { ip, cause: EndCause::Branch(found.insn) });
            }
            closed |= !append(&mut first.block, ip, found);
            let next = found.insn.next(ip);
            if next > goal || next <= ip {
                return Err(EarlyEnd { ip, cause: EndCause::Missed });
            }
            ip = next;
            if !closed {
                first.next = ip;
            }
        }
        Ok(first)
    }

    /// Finds the end of the straight-line code from `at`.
    pub(super) fn end(&mut self, at: u64) -> EarlyEnd {
        let goal = at.saturating_add(LONGEST);
        self.reach(at, goal).err().unwrap_or(EarlyEnd { ip: goal, cause: EndCause::Missed })
    }

    /// Adds the instruction at `ip` to a block that ends there. Returns `false` if the instruction needs its own block.
    pub(super) fn extend(&mut self, block: &mut Block, ip: u64) -> Result<bool, ErrorKind> {
        let found = self.insn_at(ip)?;
        Ok(append(block, ip, found))
    }

    /// Decodes the instruction at `ip`.
    pub(super) fn insn_at(&mut self, ip: u64) -> Result<CodeInsn, ErrorKind> {
        let mode = self.mode_at(ip);
        let insn = match insn::decode(self.window.from(ip), mode, ip) {
            Ok(insn) => insn,
            Err(_) => self.fetch_elsewhere(ip, mode)?,
        };
        let truncated = is_truncated(&self.window, ip, &insn);
        Ok(CodeInsn { insn, mode, section: self.section, truncated })
    }

    /// Decodes an instruction that is not completely in the part of the image that the last one came from.
    #[cold]
    fn fetch_elsewhere(&mut self, ip: u64, mode: ExecMode) -> Result<Insn, ErrorKind> {
        let fetched = fetch(self.image, self.cr3.into(), Window::default(), ip, mode);
        let (window, insn) = fetched.map_err(|kind| match kind {
            ErrorKind::NoMemory { ip } => ErrorKind::NoMemory { ip },
            _ => ErrorKind::UnknownInstruction { ip },
        })?;
        self.window = window;
        self.section = section_of(self.image, &window);
        Ok(insn)
    }

    fn mode_at(&self, ip: u64) -> ExecMode {
        self.modes.iter().find(|range| range.addresses.contains(&ip)).map_or(self.mode, |range| range.mode)
    }

    fn empty(&self, ip: u64) -> Block {
        Block {
            ip,
            end_ip: ip,
            insns: 0,
            section: u32::MAX,
            mode: self.mode,
            speculative: false,
            truncated: false,
        }
    }
}

/// Adds an instruction to a block that ends where the instruction begins. Returns `false` at a border between them.
fn append(block: &mut Block, ip: u64, found: CodeInsn) -> bool {
    let CodeInsn { insn: _, mode, section, truncated } = found;
    if block.insns == 0 {
        *block = Block { ip, section, mode, ..*block };
    } else if block.section != section || block.mode != mode || block.truncated {
        return false;
    }
    block.end_ip = ip;
    block.insns += 1;
    block.truncated = truncated;
    true
}

/// Returns true if execution never continues after the instruction, or only after a record.
fn always_branches(class: Class) -> bool {
    class.is_branch() && class != Class::CondJump
}
