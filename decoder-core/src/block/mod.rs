//! Events to blocks of instructions: the instruction flow, many instructions at a time.
//!
//! A block is a stretch of the walk that the code alone decides: instructions one behind the other, over direct jumps
//! and calls, up to a branch that the trace decides or to an event. The blocks of a trace hold the same instructions as
//! [`InsnDecoder`](crate::flow::InsnDecoder) gives, and lie between the same events.
//!
//! Code is decoded once: what was found is kept in memory that the caller hands in, as many [`Slot`]s as there are to
//! spare. Without any, every block is decoded anew. Also kept is where the next outcomes led from an address: when they
//! come there again, the same blocks are given out without a look at the code.
//!
//! ```
//! use pugmark_decoder_core::block::{BlockDecoder, Item, Slot};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! // 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000
//! let code = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x0e";
//!
//! let mut memory = [Slot::default(); 64];
//! let mut blocks = BlockDecoder::new(trace, Image::new(&sections), &mut memory);
//! blocks.sync_forward();
//! let mut seen = vec![];
//! while let Some(item) = blocks.next()? {
//!     if let Item::Block(block) = item {
//!         seen.push((block.ip, block.end_ip, block.insns));
//!         let addresses: Vec<_> = blocks.insns(&block).map(|(ip, _)| ip).collect();
//!         assert_eq!(addresses.len(), block.insns as usize);
//!     }
//! }
//! assert_eq!(seen, [(0x1000, 0x1002, 2), (0x1005, 0x1002, 4)]);
//! # Ok::<(), pugmark_decoder_core::Error>(())
//! ```

mod cache;
mod decoder;
mod explore;
mod fast;
mod follow;
mod insns;
mod path;
mod run;
mod slow;

pub use cache::Slot;
pub use decoder::BlockDecoder;
pub use insns::Insns;
pub(crate) use run::{is_truncated, section_of};

use crate::{event::Event, mode::ExecMode};

/// Instructions that were executed one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The address of the first instruction.
    pub ip: u64,
    /// The address of the last instruction.
    pub end_ip: u64,
    /// How many there are; those behind the first follow by the code, direct jumps and calls included.
    pub insns: u32,
    /// The section that they are in, by its place in [`Image::sections`](crate::image::Image::sections); `u32::MAX` where that number is too small.
    pub section: u32,
    /// In what mode they were executed.
    pub mode: ExecMode,
    /// In a transaction.
    pub speculative: bool,
    /// The last instruction's bytes are not all in the section, but partly in others.
    pub truncated: bool,
}

/// What happened next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// Instructions were executed.
    Block(Block),
    /// Something else happened.
    Event(Event),
}
