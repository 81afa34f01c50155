//! A block of instructions, and the status after it.

use pugmark_decoder_core::{insn::Insn, mode::ExecMode};

/// Instructions that were executed one after the other, all from one section of the image.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The address where it begins, also if it is empty.
    pub ip: u64,
    /// The mode, if the trace has given one.
    pub mode: Option<ExecMode>,
    /// True inside a transaction that may be aborted.
    pub speculative: bool,
    /// The instructions.
    pub insns: Vec<BlockInsn>,
    /// The section of its instructions.
    pub(super) section: Option<SectionId>,
    /// True if the last instruction goes on in another section.
    pub(super) truncated: bool,
}

/// The address of a section, and that of its bytes in this process.
pub(super) type SectionId = (u64, usize);

/// An instruction with its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInsn {
    /// The address.
    pub ip: u64,
    /// The instruction.
    pub insn: Insn,
}

impl Block {
    /// The maximum number of instructions.
    const MOST: usize = 65535;

    /// Begins an empty block.
    pub(super) fn begin(&mut self, ip: u64, mode: Option<ExecMode>, speculative: bool) {
        self.insns.clear();
        let insns = std::mem::take(&mut self.insns);
        *self = Self { ip, mode, speculative, insns, ..Self::default() };
    }

    /// Returns the number of instructions that can follow.
    pub(super) fn room(&self) -> usize {
        if self.truncated { 0 } else { Self::MOST - self.insns.len() }
    }

    /// Returns the last instruction.
    #[must_use]
    pub fn last(&self) -> Option<&BlockInsn> {
        self.insns.last()
    }
}

/// The status after a synchronisation, a block or an event, as libipt's `enum pt_status_flag` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStatus {
    /// An event comes next.
    pub event_pending: bool,
    /// Tracing is disabled.
    pub ip_suppressed: bool,
    /// The trace ends.
    pub end: bool,
}
