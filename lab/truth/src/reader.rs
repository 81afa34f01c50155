//! Reads a finished log.

use crate::{Header, LogMode, Record, Sum, TruthError};

/// A log in a file that holds the machine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Log<'a> {
    header: Header,
    /// The places of all records that there is room for.
    rooms: &'a [[u8; Record::BYTES]],
}

impl<'a> Log<'a> {
    /// Opens the log that fills `region`.
    ///
    /// # Errors
    /// Returns an error if the region does not hold a log of this layout.
    pub fn new(region: &'a [u8]) -> Result<Self, TruthError> {
        let header = Header::parse(region)?;
        let (rooms, _) = region[Header::BYTES..].as_chunks();
        // `parse` has checked that the claimed capacity fits.
        Ok(Self { header, rooms: &rooms[..header.capacity as usize] })
    }

    /// Returns the log's header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the records in the order of retirement; for a ring, the last ones.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        let records = &self.rooms[..self.header.len() as usize];
        let oldest = match self.header.total().checked_sub(records.len() as u64) {
            Some(overwritten) if self.header.mode() == LogMode::Ring && !records.is_empty() => {
                (overwritten % records.len() as u64) as usize
            }
            _ => 0,
        };
        let (newer, older) = records.split_at(oldest);
        Records { rest: older.iter(), then: newer.iter() }
    }

    /// Returns the sums of a log that keeps sums, in the order in which their first instructions retired.
    pub fn sums(&self) -> impl Iterator<Item = Sum> + use<'a> {
        let kept = if self.header.mode() == LogMode::Hash { self.rooms } else { &[] };
        kept.iter().map_while(|bytes| Sum::from_words(words(bytes)))
    }
}

/// Iterator over the records of a [`Log`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: core::slice::Iter<'a, [u8; Record::BYTES]>,
    then: core::slice::Iter<'a, [u8; Record::BYTES]>,
}

fn words(bytes: &[u8; Record::BYTES]) -> [u64; 3] {
    let (words, _) = bytes.as_chunks();
    [0, 1, 2].map(|word| u64::from_le_bytes(words[word]))
}

impl Iterator for Records<'_> {
    type Item = Record;

    #[inline]
    fn next(&mut self) -> Option<Record> {
        self.rest.next().or_else(|| self.then.next()).map(|bytes| Record::from_words(words(bytes)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.len() + self.then.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Records<'_> {}
