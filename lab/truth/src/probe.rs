//! A probe's data in memory: the packets of a trace that the monitor switched on, and the code that executed.
//!
//! The monitor can trace a guest from its first instruction on, with a unit unknown to the guest, as a debugger's probe
//! on the board does. A [`ProbeWriter`] keeps the code: each instruction's bytes when it executes for the first time,
//! so that decoding the packets needs no file of the guest. The trace is in parts. If an instruction's bytes have
//! changed, the part ends and the next begins: code does not change within a part.
//!
//! ```
//! use core::sync::atomic::AtomicU64;
//! use pugmark_truth::probe::{ProbeLog, ProbeRecord, ProbeWriter};
//!
//! let words = [const { AtomicU64::new(0) }; 2048];
//! let mut writer = ProbeWriter::new(&words)?;
//! assert!(writer.add_code(0x1000, &[0x90]));
//! assert!(writer.end_part(0x20, 1));
//! writer.finish();
//!
//! let word = |word: &AtomicU64| word.load(core::sync::atomic::Ordering::Relaxed).to_le_bytes();
//! let bytes: Vec<u8> = words.iter().flat_map(word).collect();
//! let log = ProbeLog::new(&bytes)?;
//! assert!(log.is_finished());
//! let records: Vec<_> = log.records().collect();
//! assert!(matches!(records[0], ProbeRecord::Code(code) if code.ip == 0x1000 && code.bytes() == [0x90]));
//! assert_eq!(records[1], ProbeRecord::PartEnd { packets: 0x20, session: 1 });
//! # Ok::<(), pugmark_truth::probe::NoProbe>(())
//! ```

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// The size and alignment of a probe's region.
pub const REGION_BYTES: u64 = 64 << 20;
/// The offset in the region of the table of the trace's output regions.
pub const TABLE: u64 = 4 << 10;
/// The offset of the packets, which fill the rest of the region.
pub const PACKETS: u64 = REGION_BYTES / 2;

/// The offset of the records.
const RECORDS: u64 = 8 << 10;
const MAGIC: u64 = u64::from_le_bytes(*b"PUGPROBE");
/// The header's words: the magic number, the number of complete records, and 1 if no more will come.
const WORD_MAGIC: usize = 0;
const WORD_COUNT: usize = 1;
const WORD_FINISHED: usize = 2;
/// The words of a record: an address and up to fifteen bytes with their number, or the end of a part.
const RECORD_WORDS: usize = 3;
const MAX_BYTES: usize = 15;

/// Memory that has no room for a probe's records, or in which no probe has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoProbe;

impl fmt::Display for NoProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this memory has nothing of a probe, or no room for it")
    }
}

impl core::error::Error for NoProbe {}

/// An instruction's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeCode {
    /// The instruction's address in the trace.
    pub ip: u64,
    bytes: [u8; 16],
}

impl ProbeCode {
    /// Returns the code of an instruction of up to fifteen bytes.
    #[must_use]
    pub fn new(ip: u64, bytes: &[u8]) -> Self {
        let mut padded = [0; 16];
        padded.iter_mut().zip(&bytes[..bytes.len().min(MAX_BYTES)]).for_each(|(to, from)| *to = *from);
        padded[MAX_BYTES] = bytes.len().min(MAX_BYTES) as u8;
        Self { ip, bytes: padded }
    }

    /// Returns the instruction's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.bytes[MAX_BYTES]).min(MAX_BYTES)]
    }

    fn to_words(self) -> [u64; RECORD_WORDS] {
        let [low, high]: [[u8; 8]; 2] =
            [core::array::from_fn(|at| self.bytes[at]), core::array::from_fn(|at| self.bytes[at + 8])];
        [self.ip, u64::from_le_bytes(low), u64::from_le_bytes(high)]
    }
}

/// An entry of a probe's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeRecord {
    /// An instruction executed for the first time, or with other bytes than before.
    Code(ProbeCode),
    /// A part of the trace ended.
    PartEnd {
        /// The number of bytes of packets up to the part's end.
        packets: u64,
        /// The truth log's session of the part's instructions.
        session: u16,
    },
}

impl ProbeRecord {
    fn from_words(words: [u64; RECORD_WORDS]) -> Self {
        let [first, low, high] = words;
        if high >> 56 == 0 {
            return Self::PartEnd { packets: first, session: low as u16 };
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&high.to_le_bytes());
        Self::Code(ProbeCode { ip: first, bytes })
    }
}

/// The writer of a probe's log.
#[derive(Debug)]
pub struct ProbeWriter<'a> {
    header: &'a [AtomicU64],
    records: &'a [[AtomicU64; RECORD_WORDS]],
    count: usize,
}

impl<'a> ProbeWriter<'a> {
    /// Begins a log in `region`, the first half of a probe's region.
    ///
    /// # Errors
    /// The region has no room for records.
    pub fn new(region: &'a [AtomicU64]) -> Result<Self, NoProbe> {
        let (header, records) = region.split_at_checked(RECORDS as usize / 8).ok_or(NoProbe)?;
        header[WORD_COUNT].store(0, Ordering::Relaxed);
        header[WORD_FINISHED].store(0, Ordering::Relaxed);
        header[WORD_MAGIC].store(MAGIC, Ordering::Release);
        Ok(Self { header, records: records.as_chunks().0, count: 0 })
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Compares code with the record with this index: `Some(true)` if that is the same code, `Some(false)` if it is
    /// other code at the same address, `None` if it is another record or there is no such record.
    #[must_use]
    pub fn compare(&self, index: usize, code: ProbeCode) -> Option<bool> {
        let words = self.records.get(index)?.each_ref().map(|word| word.load(Ordering::Relaxed));
        (words[0] == code.ip).then(|| words == code.to_words())
    }

    /// Notes an instruction of up to fifteen bytes. Returns `false` if there is no room.
    pub fn add_code(&mut self, ip: u64, bytes: &[u8]) -> bool {
        self.append(ProbeCode::new(ip, bytes).to_words())
    }

    /// Notes that a part has ended. Returns `false` if there is no room.
    pub fn end_part(&mut self, packets: u64, session: u16) -> bool {
        self.append([packets, session.into(), 0])
    }

    fn append(&mut self, words: [u64; RECORD_WORDS]) -> bool {
        let Some(slot) = self.records.get(self.count) else { return false };
        slot.iter().zip(words).for_each(|(slot, word)| slot.store(word, Ordering::Relaxed));
        self.count += 1;
        self.header[WORD_COUNT].store(self.count as u64, Ordering::Release);
        true
    }

    /// Marks the log as finished.
    pub fn finish(&self) {
        self.header[WORD_FINISHED].store(1, Ordering::Release);
    }
}

/// The reader of a probe's log.
#[derive(Clone, Copy, Debug)]
pub struct ProbeLog<'a> {
    records: &'a [[u8; 8 * RECORD_WORDS]],
    finished: bool,
}

impl<'a> ProbeLog<'a> {
    /// Reads a region, or its first half.
    ///
    /// # Errors
    /// The region is too short, or no probe has begun in it.
    pub fn new(region: &'a [u8]) -> Result<Self, NoProbe> {
        let (header, records) = region.split_at_checked(RECORDS as usize).ok_or(NoProbe)?;
        let word = |index: usize| u64::from_le_bytes(header.as_chunks().0[index]);
        if word(WORD_MAGIC) != MAGIC {
            return Err(NoProbe);
        }
        let records = &records[..records.len().min((PACKETS - RECORDS) as usize)];
        let (records, _) = records.as_chunks();
        let complete = usize::try_from(word(WORD_COUNT)).ok().and_then(|count| records.get(..count));
        let records = complete.ok_or(NoProbe)?;
        Ok(Self { records, finished: word(WORD_FINISHED) != 0 })
    }

    /// Returns whether the log is finished.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Returns all records, in order.
    pub fn records(&self) -> impl Iterator<Item = ProbeRecord> + 'a {
        let word = |record: &[u8; 8 * RECORD_WORDS], index: usize| -> u64 {
            record.as_chunks().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        self.records
            .iter()
            .map(move |record| ProbeRecord::from_words(core::array::from_fn(|at| word(record, at))))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    #[test]
    fn code_of_any_length_and_ends_of_parts_come_back_in_order() {
        let words = words(1024 + 3 * 17);
        let mut writer = ProbeWriter::new(&words).unwrap();
        let long: Vec<u8> = (1..=15).collect();
        let mut expected = Vec::new();
        for len in 1..=15 {
            assert!(writer.add_code(u64::MAX - 1, &long[..len]));
            expected.push(ProbeRecord::Code(ProbeCode::new(u64::MAX - 1, &long[..len])));
            assert!(matches!(expected[len - 1], ProbeRecord::Code(code) if code.bytes() == &long[..len]));
        }
        assert!(writer.end_part(0x1234_5678, 7));
        expected.push(ProbeRecord::PartEnd { packets: 0x1234_5678, session: 7 });
        let read = bytes(&words);
        let log = ProbeLog::new(&read).unwrap();
        assert_eq!((log.records().collect::<Vec<_>>(), log.is_finished()), (expected, false));
        assert!(writer.add_code(1, &[0]));
        assert_eq!(writer.count(), 17);
        // There is no room for more.
        assert!(!writer.add_code(2, &[0]) && !writer.end_part(1, 1));
        writer.finish();
        let read = bytes(&words);
        let log = ProbeLog::new(&read).unwrap();
        assert_eq!((log.records().count(), log.is_finished()), (17, true));
    }

    #[test]
    fn code_is_compared_with_that_of_a_record() {
        let words = words(1024 + 3 * 2);
        let mut writer = ProbeWriter::new(&words).unwrap();
        assert!(writer.add_code(0x10, &[0xeb, 0xfe]));
        for (index, ip, code, same) in [
            (0, 0x10, &[0xeb, 0xfe][..], Some(true)),
            (0, 0x10, &[0xeb, 0xff], Some(false)),
            (0, 0x10, &[0xeb, 0xfe, 0], Some(false)),
            (0, 0x11, &[0xeb, 0xfe], None),
            (2, 0x10, &[0xeb, 0xfe], None),
        ] {
            assert_eq!(writer.compare(index, ProbeCode::new(ip, code)), same, "{index} {ip:x} {code:x?}");
        }
    }

    #[test]
    fn refuses_memory_without_a_probe() {
        assert_eq!(ProbeLog::new(&[0; 8191]).unwrap_err(), NoProbe);
        assert_eq!(ProbeLog::new(&[0; 8192]).unwrap_err(), NoProbe);
        assert!(ProbeWriter::new(&words(1023)).is_err());
        let words = words(1024);
        let _ = ProbeWriter::new(&words).unwrap();
        words[WORD_COUNT].store(1, Ordering::Relaxed);
        let read = bytes(&words);
        assert_eq!(ProbeLog::new(&read).unwrap_err(), NoProbe, "a record that has no room");
    }
}
