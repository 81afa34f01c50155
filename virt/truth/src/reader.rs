//! Reads a finished log.

use crate::{Header, Record, TruthError};

/// A log in a file that holds the machine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Log<'a> {
    header: Header,
    records: &'a [[u8; Record::BYTES]],
}

impl<'a> Log<'a> {
    /// Opens the log that fills `region`.
    ///
    /// # Errors
    /// Returns an error if the region does not hold a log of this layout.
    pub fn new(region: &'a [u8]) -> Result<Self, TruthError> {
        let header = Header::parse(region)?;
        let (records, _) = region[Header::BYTES..].as_chunks();
        // `parse` has checked that the claimed capacity fits.
        Ok(Self { header, records: &records[..header.len() as usize] })
    }

    /// Returns the log's header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the records in the order of retirement.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records { rest: self.records.iter() }
    }
}

/// Iterator over the records of a [`Log`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: core::slice::Iter<'a, [u8; Record::BYTES]>,
}

impl Iterator for Records<'_> {
    type Item = Record;

    #[inline]
    fn next(&mut self) -> Option<Record> {
        let (words, _) = self.rest.next()?.as_chunks();
        Some(Record::from_words([0, 1, 2].map(|word| u64::from_le_bytes(words[word]))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

impl ExactSizeIterator for Records<'_> {}
