//! Appends records to a log.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Header, LogMode, Record, TruthError, header, sums};

/// A writer of records to a region. Several processors can share one; their records are in the order of the appends.
#[derive(Clone, Copy, Debug)]
pub struct LogWriter<'a> {
    header: &'a [AtomicU64],
    records: &'a [[AtomicU64; 3]],
    /// The mark of this log's complete records.
    epoch: u64,
    mode: LogMode,
}

impl<'a> LogWriter<'a> {
    /// Starts an empty log of every record: see [`Self::with_mode`].
    ///
    /// # Errors
    /// Returns an error if the region has no room for a header.
    pub fn new(region: &'a [AtomicU64]) -> Result<Self, TruthError> {
        Self::with_mode(region, LogMode::Full)
    }

    /// Starts an empty log that fills `region`, which has an earlier log, or is zero like memory after power-on.
    ///
    /// # Errors
    /// Returns an error if the region has no room for a header.
    pub fn with_mode(region: &'a [AtomicU64], mode: LogMode) -> Result<Self, TruthError> {
        let Some((header, rest)) = region.split_at_checked(header::WORDS) else {
            return Err(TruthError::Short { bytes: region.len() * 8 });
        };
        let (records, _): (&[[AtomicU64; 3]], _) = rest.as_chunks();
        let [earlier, earlier_mode] =
            [header::word::EPOCH, header::word::MODE].map(|word| header[word].load(Ordering::Relaxed));
        // An earlier log's records are marked too, with other numbers. Only a ring has several numbers.
        if earlier != 0 && (mode, earlier_mode) != (LogMode::Full, LogMode::Full.number()) {
            records.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        let earlier = earlier & EPOCHS;
        let epoch = earlier % EPOCHS + 1;
        header[header::word::MAGIC].store(header::MAGIC, Ordering::Relaxed);
        header[header::word::EPOCH].store(epoch, Ordering::Relaxed);
        header[header::word::LAYOUT].store(header::layout(), Ordering::Relaxed);
        header[header::word::CAPACITY].store(records.len() as u64, Ordering::Relaxed);
        header[header::word::COUNT].store(0, Ordering::Relaxed);
        header[header::word::BEGUN].store(0, Ordering::Relaxed);
        header[header::word::EXIT].store(0, Ordering::Relaxed);
        header[header::word::MODE].store(mode.number(), Ordering::Relaxed);
        Ok(Self { header, records, epoch, mode })
    }

    /// Appends one record. If the region is full and no ring, the record is only counted: see [`Header::lost`].
    ///
    /// A record is counted only when it and all before it are written, so a concurrent reader never sees a half-written
    /// record among the counted ones. No processor waits for a slow one: the one that completes the first uncounted
    /// record also counts the complete ones after it. If each vCPU waited for its turn, vCPUs on fewer processors of
    /// the host would spend nearly all time waiting for one that does not run.
    #[inline]
    pub fn append(&self, record: Record) {
        if self.mode == LogMode::Hash {
            return self.add(record);
        }
        let index = self.header[header::word::BEGUN].fetch_add(1, Ordering::Relaxed);
        let Some((slot, mark)) = self.slot(index) else { return };
        let [rip, cr3, rest] = record.to_words();
        slot[0].store(rip, Ordering::Relaxed);
        slot[1].store(cr3, Ordering::Relaxed);
        // Sequentially consistent with the loads below: of two processors that complete records at the same time, the
        // later one sees both.
        slot[2].store(rest | mark, Ordering::SeqCst);
        let count = &self.header[header::word::COUNT];
        let mut complete = count.load(Ordering::SeqCst);
        let is_marked = |(slot, mark): (&[AtomicU64; 3], _)| slot[2].load(Ordering::SeqCst) & EPOCH == mark;
        while self.slot(complete).is_some_and(is_marked) {
            let next = complete + 1;
            let counted = count.compare_exchange(complete, next, Ordering::SeqCst, Ordering::SeqCst);
            complete = counted.map_or_else(|now| now, |_| next);
        }
    }

    /// Adds an instruction to its sum; other records are dropped.
    fn add(&self, record: Record) {
        if record.time().is_some() || record.branch().is_some() || record.flags.is_software_interrupt() {
            return;
        }
        let added = sums::add(self.records, record);
        let word = if added { header::word::COUNT } else { header::word::BEGUN };
        self.header[word].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the slot of the record with this index, and the mark of its completion.
    fn slot(&self, index: u64) -> Option<(&[AtomicU64; 3], u64)> {
        let rooms = self.records.len() as u64;
        let (place, lap) = match self.mode {
            LogMode::Ring if rooms > 0 => (index % rooms, index / rooms),
            _ => (index, 0),
        };
        // In a ring the mark must differ from that of the overwritten record.
        let mark = (self.epoch + lap - 1) % EPOCHS + 1;
        Some((self.records.get(usize::try_from(place).ok()?)?, mark << EPOCH_SHIFT))
    }

    /// Returns the number of records appended, including those that found no room.
    #[must_use]
    pub fn count(&self) -> u64 {
        let word = |word: usize| self.header[word].load(Ordering::Relaxed);
        let (complete, begun) = (word(header::word::COUNT), word(header::word::BEGUN));
        match self.mode {
            LogMode::Full => complete + begun.saturating_sub(self.records.len() as u64),
            LogMode::Ring => complete,
            LogMode::Hash => complete + begun,
        }
    }

    /// Closes the log: records that it is complete, and the guest's exit value.
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
