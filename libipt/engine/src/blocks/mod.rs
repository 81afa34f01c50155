//! The block decoder of libipt 2.3: a walk over events, which goes through the code from one to the next.
//!
//! libipt's instruction decoder is the same walk, a block at a time. Each block ends where libipt ends it: at a branch
//! that needs the trace, at an event, and where libipt's cache of known code ends it.

mod apply;
mod block;
mod decoder;
mod errata;
mod insns;
mod known;
mod loops;
mod place;
mod resync;
mod run;
#[cfg(test)]
mod tests;

pub use block::{Block, BlockInsn, FlowStatus};
pub use decoder::{BlockDecoder, BlockOptions};
