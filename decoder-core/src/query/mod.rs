//! The query decoder: gives the outcome or target of each branch to a caller that walks over the code itself.
//!
//! A caller that has the code, or an analysis of it, queries each conditional and each indirect branch, in the order of
//! its walk. Between the branches the trace has events; a pending event must be taken before the next branch.
//! [`pending`](QueryDecoder::pending) returns the kind of the next branch event.
//!
//! ```
//! use pugmark_decoder_core::event::EventKind;
//! use pugmark_decoder_core::query::{Pending, QueryDecoder};
//!
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, not taken), TIP (2000)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
//!     \x0c\x2d\0\x20";
//! let mut query = QueryDecoder::new(trace);
//! query.sync_forward();
//! let event = query.event()?.unwrap();
//! assert_eq!((event.kind, event.ip), (EventKind::Enabled { resumed: false }, Some(0x1000)));
//! while query.pending()? == Some(Pending::Event) {
//!     query.event()?;
//! }
//! assert_eq!(query.conditional()?, Some(true));
//! assert!(query.indirect().is_err(), "there is another outcome before it");
//! assert_eq!(query.conditional()?, Some(false));
//! assert_eq!(query.indirect()?, Some(Some(0x2000)));
//! assert_eq!(query.conditional()?, None);
//! # Ok::<(), pugmark_decoder_core::query::QueryError>(())
//! ```

mod decoder;
mod error;
mod visit;

pub(crate) use decoder::OpenBranchEvent;
pub use decoder::QueryDecoder;
pub use error::QueryError;
pub use visit::BranchEventSink;

use crate::event::Event;

/// The kind of the next branch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pending {
    /// An event: [`event`](QueryDecoder::event).
    Event,
    /// The outcome of a conditional branch or of a compressed return: [`conditional`](QueryDecoder::conditional).
    Conditional,
    /// The target of an indirect branch: [`indirect`](QueryDecoder::indirect).
    Indirect,
}

/// A branch event: what a walk over the code learns from the trace at a branch, or between two branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BranchEvent {
    /// An event.
    Event(Event),
    /// The outcome of a conditional branch: true if it was taken.
    Conditional(bool),
    /// The target of an indirect branch; `None` if the trace omits it because the target is not traced.
    Indirect(Option<u64>),
}
