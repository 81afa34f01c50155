//! A cache of decoded blocks that know their successors, along which a trace is followed.
//!
//! A block is decoded when the trace first reaches it. After that it knows its successors, so a conditional branch
//! costs one bit of the trace and one read of memory. [`BlockCache`] holds the blocks, an [`ExecutionSink`] receives
//! what was executed, and [`BlockDecoder::visit`](crate::block::BlockDecoder::visit) decodes: it passes on the same as
//! [`BlockDecoder::next`](crate::block::BlockDecoder::next), many times as fast.
//!
//! ```
//! use pugmark_decoder_core::block::{Block, BlockDecoder};
//! use pugmark_decoder_core::event::Event;
//! use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! #[derive(Default)]
//! struct Blocks(Vec<(u64, u32)>);
//!
//! impl ExecutionSink for Blocks {
//!     const BLOCKS: bool = true;
//!
//!     fn block(&mut self, block: &Block) {
//!         self.0.push((block.ip, block.insns));
//!     }
//!
//!     fn event(&mut self, event: &Event) {
//!         println!("{event:?}");
//!     }
//! }
//!
//! // 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000
//! let code = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x0e";
//!
//! let mut memory = [0; 2048];
//! let mut cache = BlockCache::new(&mut memory);
//! let mut blocks = Blocks::default();
//! let mut decoder = BlockDecoder::new(trace, Image::new(&sections));
//! decoder.sync_forward();
//! decoder.visit(&mut cache, &mut blocks)?;
//! assert_eq!(blocks.0, [(0x1000, 2), (0x1005, 4)]);
//! # Ok::<(), pugmark_decoder_core::Error>(())
//! ```

mod branches;
mod build;
mod calls;
mod context;
pub mod edges;
mod fill;
mod node;
mod rows;
mod scratch;
mod sequences;
mod sink;
mod store;
mod visit;

pub(crate) use scratch::Scratch;
pub use sink::{ExecutionSink, InstructionRun};
pub use store::{BlockCache, Statistics, WORDS_PER_BLOCK};
