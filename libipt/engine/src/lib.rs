//! Packets, error codes and words for errors and events, as libipt's library and programs have them.
//!
//! `libipt.so.2`, `ptdump` and `ptxed` share it, so each answer of libipt is written once.

mod code;
mod event_text;
pub mod packets;

pub use code::Code;
pub use event_text::{EventText, event_text};
