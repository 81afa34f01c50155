//! Packets, events, error codes and words, as libipt's library and programs have them.
//!
//! `libipt.so.2`, `ptdump` and `ptxed` share it, so each answer of libipt is written once. Where releases of libipt
//! differ, [`Release`] says which one answers.
//!
//! ```text
//! packets      as ptdump shows them
//! packet_decoder -> events -> blocks
//!   PtPacket        PtEvent    instructions between the events, as ptxed shows them
//! ```

mod blocks;
mod clock;
mod code;
mod event_text;
mod event_trace;
mod events;
mod packet_decoder;
mod returns;
mod sync;

pub mod event;
pub mod packet;
pub mod packets;

pub use blocks::{Block, BlockDecoder, BlockInsn, BlockOptions, FlowStatus};
pub use clock::Clock;
pub use code::{Answer, Code};
pub use event_text::{EventText, event_text};
pub use event_trace::{Binding, EventData, is_known};
pub use events::{EventDecoder, EventOptions};
pub use packet_decoder::{PacketDecoder, TraceBytes};
pub use returns::Returns;
pub use sync::backward;

/// A release of libipt, where its answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 2.1.2, which Debian 13 has. Of what is shared, 2.0.5 answers the same.
    V2_1,
    /// 2.3: TRIG packets, the CFE types of software interrupts and system calls, a PWRE that waits for its PWRX, and
    /// events that an overflow cuts off.
    V2_3,
}
