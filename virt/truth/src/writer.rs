//! Appends records to a log.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Header, Record, TruthError, header};

/// Appends records to a region. Several processors can share one writer; their records are in the order of the appends.
#[derive(Clone, Copy, Debug)]
pub struct LogWriter<'a> {
    header: &'a [AtomicU64],
    records: &'a [[AtomicU64; 3]],
}

impl<'a> LogWriter<'a> {
    /// Starts an empty log that fills `region`. Earlier contents of the region no longer count.
    ///
    /// # Errors
    /// Returns an error if the region has no room for a header.
    pub fn new(region: &'a [AtomicU64]) -> Result<Self, TruthError> {
        let Some((header, rest)) = region.split_at_checked(header::WORDS) else {
            return Err(TruthError::Short { bytes: region.len() * 8 });
        };
        let (records, _) = rest.as_chunks();
        header[header::word::MAGIC].store(header::MAGIC, Ordering::Relaxed);
        header[header::word::LAYOUT].store(header::layout(), Ordering::Relaxed);
        header[header::word::CAPACITY].store(records.len() as u64, Ordering::Relaxed);
        header[header::word::COUNT].store(0, Ordering::Relaxed);
        header[header::word::BEGUN].store(0, Ordering::Relaxed);
        header[header::word::EXIT].store(0, Ordering::Relaxed);
        Ok(Self { header, records })
    }

    /// Appends one record. If the region is full, the record is only counted: see [`Header::lost`].
    ///
    /// A record is counted only after it is written, so a reader that watches the log never sees a half-written record
    /// among the counted ones. Therefore a processor waits here until every append that began earlier is complete.
    #[inline]
    pub fn append(&self, record: Record) {
        let index = self.header[header::word::BEGUN].fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = usize::try_from(index).ok().and_then(|index| self.records.get(index)) {
            for (word, value) in slot.iter().zip(record.to_words()) {
                word.store(value, Ordering::Relaxed);
            }
        }
        let count = &self.header[header::word::COUNT];
        while count.load(Ordering::Acquire) != index {
            core::hint::spin_loop();
        }
        count.store(index + 1, Ordering::Release);
    }

    /// Returns the number of records appended, including those that found no room.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.header[header::word::COUNT].load(Ordering::Relaxed)
    }

    /// Closes the log: records that it is complete and with which value the guest ended.
    pub fn close(&self, exit: u32) {
        self.header[header::word::EXIT].store(header::closed(exit), Ordering::Release);
    }

    /// Returns the number of records that the region has room for.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.records.len()
    }
}

const _: () = assert!(Header::BYTES == header::WORDS * 8);

#[cfg(test)]
mod tests;
