//! Packets that only the reader of the trace knows.

/// A packet whose opcode this library does not know and [`Config::unknown`](crate::config::Config::unknown) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unknown {
    /// How many bytes it has, its opcode included; not zero.
    pub size: u8,
    /// Whatever the reader makes of it. Nothing here looks at it.
    pub value: u64,
}
