//! Events to instructions: walks over the code of an [`Image`](crate::image::Image) along the path that the trace
//! gives.
//!
//! Between events the walk follows the code: direct jumps and calls need no packet, conditional jumps take a bit of a
//! TNT packet (taken or not taken), indirect branches take a TIP packet (target IP), and returns take either. Each
//! event has a place in the walk: at an address, after the instruction that causes it, or where the walk is. The next
//! event is known before each instruction, so the walk ends exactly where the trace ends.
//!
//! ```
//! use pugmark_decoder_core::flow::{InsnDecoder, FlowItem};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! // 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000
//! let code = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x06";
//!
//! let mut flow = InsnDecoder::new(trace, Image::new(&sections));
//! flow.sync_forward();
//! let mut seen = vec![];
//! while let Some(item) = flow.next()? {
//!     if let FlowItem::Insn(insn) = item {
//!         seen.push(insn.ip);
//!     }
//! }
//! assert_eq!(seen, [0x1000, 0x1002]);
//! # Ok::<(), pugmark_decoder_core::Error>(())
//! ```

mod ahead;
mod apply;
mod decoder;
mod errata;
mod fetch;
mod leave;
mod loops;
mod pieces;
mod place;
mod read_ahead;
mod recover;
mod span;
mod sync;
#[cfg(test)]
mod tests;
mod tnt;
mod verbs;
mod walker;

pub use decoder::InsnDecoder;
pub use pieces::{After, Piece, Pieces};
pub use place::Placed;
pub use recover::Recovered;

pub(crate) use fetch::fetch;
pub(crate) use leave::Continuation;
pub(crate) use place::needs_trace;
pub(crate) use read_ahead::Start;
pub(crate) use verbs::walker_verbs;
pub(crate) use walker::{Upcoming, WalkState, Walker};

use crate::{event::Event, insn::Class, mode::ExecMode};

/// The next item of an instruction flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowItem {
    /// An instruction was executed.
    Insn(ExecutedInsn),
    /// Anything else happened.
    Event(Event),
}

/// An instruction that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExecutedInsn {
    /// Its address.
    pub ip: u64,
    /// Its length in bytes.
    pub len: u8,
    /// Its effect on control flow.
    pub class: Class,
    /// The mode in which it was executed.
    pub mode: ExecMode,
    /// True if it was executed in a transaction.
    pub speculative: bool,
}
