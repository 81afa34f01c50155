//! Packets that only the caller's own reader knows.

/// A packet whose opcode this library does not know but [`Config::unknown`](crate::config::Config::unknown) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unknown {
    /// The packet's size in bytes, including its opcode; not zero.
    pub size: u8,
    /// A value of the reader's choice. This library does not use it.
    pub value: u64,
}
