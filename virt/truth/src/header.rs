//! The first 64 bytes of the region.

use crate::Error;

/// Words of eight bytes a header takes.
pub(crate) const WORDS: usize = 8;
/// `PUGTRUTH`, little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PUGTRUTH");
/// Version of the layout.
pub(crate) const VERSION: u32 = 3;
/// Set in the word of the exit value when the log was closed.
const CLOSED: u64 = 1 << 63;

/// Index of each word.
pub(crate) mod word {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const LAYOUT: usize = 1;
    pub(crate) const CAPACITY: usize = 2;
    pub(crate) const COUNT: usize = 3;
    pub(crate) const EXIT: usize = 4;
    /// Records that were begun; of these, COUNT are written.
    pub(crate) const BEGUN: usize = 5;
}

/// What the log says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub(crate) capacity: u64,
    pub(crate) count: u64,
    pub(crate) exit: u64,
}

impl Header {
    /// Bytes in memory.
    pub const BYTES: usize = WORDS * 8;

    /// Reads a header from the front of a region.
    ///
    /// # Errors
    /// When the bytes are too few, or were not written by a [`Writer`](crate::Writer) of this layout.
    pub fn parse(region: &[u8]) -> Result<Self, Error> {
        let Some(header) = region.get(..Self::BYTES) else {
            return Err(Error::Short { bytes: region.len() });
        };
        let word = |index: usize| u64::from_le_bytes(header.as_chunks().0[index]);
        if word(word::MAGIC) != MAGIC {
            return Err(Error::Magic(word(word::MAGIC)));
        }
        let [version, record_bytes] = [word(word::LAYOUT) as u32, (word(word::LAYOUT) >> 32) as u32];
        if version != VERSION {
            return Err(Error::Version(version));
        }
        if record_bytes as usize != crate::Record::BYTES {
            return Err(Error::RecordBytes(record_bytes));
        }
        let claimed = word(word::CAPACITY);
        let fits = ((region.len() - Self::BYTES) / crate::Record::BYTES) as u64;
        if claimed > fits {
            return Err(Error::Capacity { claimed, fits });
        }
        Ok(Self { capacity: claimed, count: word(word::COUNT), exit: word(word::EXIT) })
    }

    /// Records the log has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.count.min(self.capacity)
    }

    /// Whether the log has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Instructions that retired after the log was full.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.count.saturating_sub(self.capacity)
    }

    /// What the guest ended with; `None` when the log was never closed.
    #[must_use]
    pub const fn exit(&self) -> Option<u32> {
        if self.exit & CLOSED != 0 { Some(self.exit as u32) } else { None }
    }
}

/// The word that says "closed with this value".
pub(crate) const fn closed(exit: u32) -> u64 {
    CLOSED | exit as u64
}

/// The word that names the layout.
pub(crate) const fn layout() -> u64 {
    VERSION as u64 | (crate::Record::BYTES as u64) << 32
}
