//! The event decoder, which libipt has since 2.1.

mod branches;
mod decoder;
mod event_trace;
mod overflow;
mod packets;
mod psb;
mod queue;
#[cfg(test)]
mod tests;

pub use decoder::{EventDecoder, EventOptions};
