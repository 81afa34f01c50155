//! What libipt's library and programs say: error codes, and the words for errors and events.
//!
//! `libipt.so.2`, `ptdump` and `ptxed` share it, so each answer of libipt is written once.

mod code;
mod event_text;

pub use code::Code;
pub use event_text::{EventText, event_text};
