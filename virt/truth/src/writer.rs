//! Appending.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Header, Record, header};

/// Appends records to a region; processors can share one, their records then lie in the order they were appended.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    header: &'a [AtomicU64],
    records: &'a [[AtomicU64; 3]],
}

impl<'a> Writer<'a> {
    /// Starts an empty log that fills `region`. Whatever of it was written before no longer counts.
    ///
    /// # Errors
    /// When the region has no room for a header.
    pub fn new(region: &'a [AtomicU64]) -> Result<Self, Error> {
        let Some((header, rest)) = region.split_at_checked(header::WORDS) else {
            return Err(Error::Short { bytes: region.len() * 8 });
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

    /// Appends one record. When the region is full it is only counted: see [`Header::lost`].
    ///
    /// A record is counted after it is written, so a reader that looks on finds no half-written one among those
    /// that are counted. A processor therefore waits here for those that began before it.
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

    /// Records appended, those that found no room included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.header[header::word::COUNT].load(Ordering::Relaxed)
    }

    /// Says that the log is complete and what value the guest ended with.
    pub fn close(&self, exit: u32) {
        self.header[header::word::EXIT].store(header::closed(exit), Ordering::Release);
    }

    /// Records there is room for.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.records.len()
    }
}

const _: () = assert!(Header::BYTES == header::WORDS * 8);

#[cfg(test)]
mod tests;
