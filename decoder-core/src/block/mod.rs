//! Events to blocks of instructions: the instruction flow, many instructions at a time.
//!
//! A block is a part of the walk that the code alone determines: consecutive instructions, through direct jumps and
//! calls, up to a branch that the trace decides, to an event, or to another section of the image. The blocks of a trace
//! hold the same instructions that [`InsnDecoder`](crate::flow::InsnDecoder) reports, between the same events.
//!
//! [`BlockDecoder::next`] decodes the code of each block when it reaches it. That is exact, and the reference for the
//! faster functions: [`BlockDecoder::visit`] passes everything to an
//! [`ExecutionSink`](crate::block_cache::ExecutionSink), and [`BlockDecoder::fill`] returns many items at a time. Both
//! decode code once and keep it in a [`BlockCache`](crate::block_cache::BlockCache).
//!
//! ```
//! use pugmark_decoder_core::block::{BlockDecoder, BlockItem};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! // 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000
//! let code = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x0e";
//!
//! let mut blocks = BlockDecoder::new(trace, Image::new(&sections));
//! blocks.sync_forward();
//! let mut seen = vec![];
//! while let Some(item) = blocks.next()? {
//!     if let BlockItem::Block(block) = item {
//!         seen.push((block.ip, block.end_ip, block.insns));
//!         let addresses: Vec<_> = blocks.insns(&block).map(|(ip, _)| ip).collect();
//!         assert_eq!(addresses.len(), block.insns as usize);
//!     }
//! }
//! assert_eq!(seen, [(0x1000, 0x1002, 2), (0x1005, 0x1002, 4)]);
//! # Ok::<(), pugmark_decoder_core::Error>(())
//! ```

mod decoder;
mod insns;
mod section;
mod step;

pub use decoder::BlockDecoder;
pub(crate) use decoder::OpenBlock;
pub use insns::Insns;
pub(crate) use section::{is_truncated, section_of};
pub(crate) use step::BlockStep;

use crate::{event::Event, mode::ExecMode};

/// Consecutively executed instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The address of the first instruction.
    pub ip: u64,
    /// The address of the last instruction.
    pub end_ip: u64,
    /// The number of instructions. Those after the first follow from the code, including direct jumps and calls.
    pub insns: u32,
    /// The section that they are in, by its index in [`Image::sections`](crate::image::Image::sections); `u32::MAX` if
    /// the index does not fit.
    pub section: u32,
    /// The mode in which they were executed.
    pub mode: ExecMode,
    /// True if they were executed in a transaction.
    pub speculative: bool,
    /// True if the last instruction's bytes are partly in other sections.
    pub truncated: bool,
}

/// The next item of a block flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockItem {
    /// Instructions were executed.
    Block(Block),
    /// Anything else happened.
    Event(Event),
}

impl BlockItem {
    /// A block without instructions, to fill memory with before [`BlockDecoder::fill`].
    pub const NONE: Self = Self::Block(decoder::NO_BLOCK);
}
