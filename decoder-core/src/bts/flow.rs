//! Decodes branch records to instructions.

use super::{BlockDecoder, Error, Options, Records};
use crate::{
    block::{self, Insns},
    flow::{Insn, Item},
    image::Image,
    mode::ExecMode,
};

/// Returns the instructions that branch records describe and the events between them, in order.
///
/// Works like [`BlockDecoder`], but one instruction at a time. Events and errors are the same.
#[derive(Clone, Debug)]
pub struct InsnDecoder<'a> {
    blocks: BlockDecoder<'a>,
    insns: Option<Insns<'a>>,
    mode: ExecMode,
}

impl<'a> InsnDecoder<'a> {
    /// A decoder at the start of `records`.
    #[must_use]
    pub fn new(records: Records<'a>, image: Image<'a>, options: Options<'a>) -> Self {
        Self { blocks: BlockDecoder::new(records, image, options), insns: None, mode: options.mode }
    }

    /// How many records were read.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.blocks.index()
    }

    /// The next instruction or event, or `None` after the last record.
    ///
    /// # Errors
    /// As [`BlockDecoder::next`].
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if let Some((ip, insn)) = self.insns.as_mut().and_then(Iterator::next) {
                let (len, class) = (insn.len, insn.class);
                return Ok(Some(Item::Insn(Insn { ip, len, class, mode: self.mode, speculative: false })));
            }
            match self.blocks.next()? {
                Some(block::Item::Block(block)) => {
                    self.mode = block.mode;
                    match &mut self.insns {
                        Some(insns) => insns.restart(&block),
                        None => self.insns = Some(self.blocks.insns(&block)),
                    }
                }
                Some(block::Item::Event(event)) => return Ok(Some(Item::Event(event))),
                None => return Ok(None),
            }
        }
    }
}
