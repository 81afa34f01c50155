//! Names and descriptions, stored in one pool for all tables.

use super::POOL;

/// A text in the pool: its start in the upper bits, its length in the low eight bits.
///
/// This is a quarter of the size of a `&'static str` and needs no relocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) u32);

impl Text {
    pub(crate) fn as_str(self) -> &'static str {
        let (at, length) = ((self.0 >> 8) as usize, (self.0 & 0xff) as usize);
        // The build script wrote both, and a test reads every text.
        POOL.get(at..at + length).unwrap_or_default()
    }
}
