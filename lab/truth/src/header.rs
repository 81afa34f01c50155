//! The header: the first 64 bytes of the log's region.

use crate::{LogMode, TruthError};

/// Header size in words of eight bytes.
pub(crate) const WORDS: usize = 8;
/// `PUGTRUTH`, little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PUGTRUTH");
/// Version of the layout that this crate writes and reads.
pub(crate) const VERSION: u32 = 5;
/// Bit of the exit word: the log was closed.
const CLOSED: u64 = 1 << 63;

/// Index of each word in the header.
pub(crate) mod word {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const LAYOUT: usize = 1;
    pub(crate) const CAPACITY: usize = 2;
    pub(crate) const COUNT: usize = 3;
    pub(crate) const EXIT: usize = 4;
    /// Records whose writing has begun, or that found no room; the first COUNT of them are complete. In a log that
    /// keeps sums: only those that found no room.
    pub(crate) const BEGUN: usize = 5;
    /// The log's number, which tells its records from those of an earlier log.
    pub(crate) const EPOCH: usize = 6;
    /// The number of the mode.
    pub(crate) const MODE: usize = 7;
}

/// The log's capacity, its record count and the guest's exit value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub(crate) capacity: u64,
    pub(crate) count: u64,
    pub(crate) begun: u64,
    pub(crate) exit: u64,
    pub(crate) mode: LogMode,
}

impl Header {
    /// Size in bytes.
    pub const BYTES: usize = WORDS * 8;

    /// Reads the header at the start of `region`.
    ///
    /// # Errors
    /// Returns an error if the region is too short, or if its header was not written by a
    /// [`LogWriter`](crate::LogWriter) of this layout.
    pub fn parse(region: &[u8]) -> Result<Self, TruthError> {
        let Some(header) = region.get(..Self::BYTES) else {
            return Err(TruthError::Short { bytes: region.len() });
        };
        let word = |index: usize| u64::from_le_bytes(header.as_chunks().0[index]);
        if word(word::MAGIC) != MAGIC {
            return Err(TruthError::Magic(word(word::MAGIC)));
        }
        let [version, record_bytes] = [word(word::LAYOUT) as u32, (word(word::LAYOUT) >> 32) as u32];
        if version != VERSION {
            return Err(TruthError::Version(version));
        }
        if record_bytes as usize != crate::Record::BYTES {
            return Err(TruthError::RecordBytes(record_bytes));
        }
        let mode = LogMode::from_number(word(word::MODE)).ok_or(TruthError::Mode(word(word::MODE)))?;
        let claimed = word(word::CAPACITY);
        let fits = ((region.len() - Self::BYTES) / mode.room_bytes()) as u64;
        if claimed > fits {
            return Err(TruthError::Capacity { claimed, fits });
        }
        let [count, begun, exit] = [word::COUNT, word::BEGUN, word::EXIT].map(word);
        Ok(Self { capacity: claimed, count, begun, exit, mode })
    }

    /// Returns the number of records in the log.
    #[must_use]
    pub fn len(&self) -> u64 {
        if self.mode == LogMode::Hash { 0 } else { self.count.min(self.capacity) }
    }

    /// Returns the number of records appended, including those that were overwritten, or of which only sums were kept.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.count
    }

    /// Returns the log's mode.
    #[must_use]
    pub const fn mode(&self) -> LogMode {
        self.mode
    }

    /// Returns whether the log has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of records that found no room because the log was full.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        match self.mode {
            LogMode::Full => self.begun.saturating_sub(self.capacity),
            LogMode::Ring => 0,
            LogMode::Hash => self.begun,
        }
    }

    /// Returns the exit value of the guest, or `None` if the log was never closed.
    #[must_use]
    pub const fn exit(&self) -> Option<u32> {
        if self.exit & CLOSED != 0 { Some(self.exit as u32) } else { None }
    }
}

/// Encodes the exit word of a closed log.
pub(crate) const fn closed(exit: u32) -> u64 {
    CLOSED | exit as u64
}

/// Encodes the layout word: version and record size.
pub(crate) const fn layout() -> u64 {
    VERSION as u64 | (crate::Record::BYTES as u64) << 32
}
