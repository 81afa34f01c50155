//! Decodes branch records to instructions.

use super::{BranchRecords, BtsBlockDecoder, Options};
use crate::{
    Error,
    block::{self, Insns},
    flow::{ExecutedInsn, FlowItem},
    image::Image,
    mode::ExecMode,
};

/// The decoder of the instructions that branch records describe and the events between them, in order.
///
/// Works like [`BtsBlockDecoder`], but one instruction at a time. Events and errors are the same.
#[derive(Clone, Debug)]
pub struct BtsInsnDecoder<'a> {
    blocks: BtsBlockDecoder<'a>,
    insns: Option<Insns<'a>>,
    mode: ExecMode,
}

impl<'a> BtsInsnDecoder<'a> {
    /// Creates a decoder at the start of `records`.
    #[must_use]
    pub fn new(records: BranchRecords<'a>, image: Image<'a>, options: Options<'a>) -> Self {
        Self { blocks: BtsBlockDecoder::new(records, image, options), insns: None, mode: options.mode }
    }

    /// Returns the offset of the next record, in bytes from the first one.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.blocks.offset()
    }

    /// Returns the next instruction or event, or `None` after the last record.
    ///
    /// # Errors
    /// As [`BtsBlockDecoder::next`].
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    pub fn next(&mut self) -> Result<Option<FlowItem>, Error> {
        loop {
            if let Some((ip, insn)) = self.insns.as_mut().and_then(Iterator::next) {
                let (len, class) = (insn.len, insn.class);
                return Ok(Some(FlowItem::Insn(ExecutedInsn {
                    ip,
                    len,
                    class,
                    mode: self.mode,
                    speculative: false,
                })));
            }
            match self.blocks.next()? {
                Some(block::BlockItem::Block(block)) => {
                    self.mode = block.mode;
                    match &mut self.insns {
                        Some(insns) => insns.restart(&block),
                        None => self.insns = Some(self.blocks.insns(&block)),
                    }
                }
                Some(block::BlockItem::Event(event)) => return Ok(Some(FlowItem::Event(event))),
                None => return Ok(None),
            }
        }
    }
}
