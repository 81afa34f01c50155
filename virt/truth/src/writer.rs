//! Appends records to a log.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Header, Record, TruthError, header};

/// Appends records to a region. Several processors can share one writer; their records are in the order of the appends.
#[derive(Clone, Copy, Debug)]
pub struct LogWriter<'a> {
    header: &'a [AtomicU64],
    records: &'a [[AtomicU64; 3]],
    /// Marks this log's records that are complete.
    epoch: u64,
}

impl<'a> LogWriter<'a> {
    /// Starts an empty log that fills `region`, which holds an earlier log, or is zero as memory is after power-on.
    ///
    /// # Errors
    /// Returns an error if the region has no room for a header.
    pub fn new(region: &'a [AtomicU64]) -> Result<Self, TruthError> {
        let Some((header, rest)) = region.split_at_checked(header::WORDS) else {
            return Err(TruthError::Short { bytes: region.len() * 8 });
        };
        let (records, _) = rest.as_chunks();
        // An earlier log's records are marked too, with other numbers.
        let earlier = header[header::word::EPOCH].load(Ordering::Relaxed) & EPOCHS;
        let epoch = earlier % EPOCHS + 1;
        header[header::word::MAGIC].store(header::MAGIC, Ordering::Relaxed);
        header[header::word::EPOCH].store(epoch, Ordering::Relaxed);
        header[header::word::LAYOUT].store(header::layout(), Ordering::Relaxed);
        header[header::word::CAPACITY].store(records.len() as u64, Ordering::Relaxed);
        header[header::word::COUNT].store(0, Ordering::Relaxed);
        header[header::word::BEGUN].store(0, Ordering::Relaxed);
        header[header::word::EXIT].store(0, Ordering::Relaxed);
        Ok(Self { header, records, epoch: epoch << EPOCH_SHIFT })
    }

    /// Appends one record. If the region is full, the record is only counted: see [`Header::lost`].
    ///
    /// A record is counted only when it and all before it are written, so a reader that watches the log never sees a
    /// half-written record among the counted ones. Nobody waits for a slow processor: whoever completes the first
    /// record that is not counted counts those after it that are complete. If each waited for its turn, processors that
    /// share fewer processors of the host would spend nearly all time waiting for one that does not run.
    #[inline]
    pub fn append(&self, record: Record) {
        let index = self.header[header::word::BEGUN].fetch_add(1, Ordering::Relaxed);
        let Some(slot) = self.slot(index) else { return };
        let [rip, cr3, rest] = record.to_words();
        slot[0].store(rip, Ordering::Relaxed);
        slot[1].store(cr3, Ordering::Relaxed);
        // In one order with the loads below: of two processors that complete records at the same time, the later one
        // sees both.
        slot[2].store(rest | self.epoch, Ordering::SeqCst);
        let count = &self.header[header::word::COUNT];
        let mut complete = count.load(Ordering::SeqCst);
        while self.slot(complete).is_some_and(|slot| slot[2].load(Ordering::SeqCst) & EPOCH == self.epoch) {
            let next = complete + 1;
            let counted = count.compare_exchange(complete, next, Ordering::SeqCst, Ordering::SeqCst);
            complete = counted.map_or_else(|now| now, |_| next);
        }
    }

    fn slot(&self, index: u64) -> Option<&[AtomicU64; 3]> {
        self.records.get(usize::try_from(index).ok()?)
    }

    /// Returns the number of records appended, including those that found no room.
    #[must_use]
    pub fn count(&self) -> u64 {
        let word = |word: usize| self.header[word].load(Ordering::Relaxed);
        word(header::word::COUNT) + word(header::word::BEGUN).saturating_sub(self.records.len() as u64)
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

/// A record's third word has the number of its log in its upper two bytes when the record is complete.
const EPOCH_SHIFT: u32 = 48;
const EPOCHS: u64 = 0xffff;
const EPOCH: u64 = EPOCHS << EPOCH_SHIFT;

const _: () = assert!(Header::BYTES == header::WORDS * 8);

#[cfg(test)]
mod tests;
