//! Names and descriptions, in one pool for all tables.

use crate::table::POOL;

/// A text in the pool: where it begins, and in the low eight bits how long it is.
///
/// A quarter of the size of a `&'static str`, and nothing to relocate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) u32);

impl Text {
    pub(crate) fn as_str(self) -> &'static str {
        let (at, length) = ((self.0 >> 8) as usize, (self.0 & 0xff) as usize);
        // The build wrote both; a test reads every one.
        POOL.get(at..at + length).unwrap_or_default()
    }
}
