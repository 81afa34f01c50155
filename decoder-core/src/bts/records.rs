//! The records of a buffer, in the order in which they were stored.

use super::record::perf;
use super::{BranchRecord, Layout};
use crate::{Error, ErrorKind};

/// One entry of a buffer of branch records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A branch.
    Branch(BranchRecord),
    /// Branches were lost here, as a PERF_RECORD_LOST reports; only in [`Layout::PerfSample`].
    Lost {
        /// The number of branches lost.
        count: u64,
    },
}

/// The records of a buffer, each with its offset, in the order in which they were stored.
///
/// ```
/// use pugmark_decoder_core::bts::{BranchRecord, Entry, Layout, BranchRecords};
///
/// // A circular buffer of three records, of which the one in the middle is the oldest.
/// let mut buffer = [0; 3 * 12];
/// for (slot, from) in [(0, 0x30), (1, 0x10), (2, 0x20)] {
///     BranchRecord { from, to: 0x100, predicted: false }.emit(Layout::Bits32, &mut buffer[slot * 12..])?;
/// }
/// let read: Result<Vec<_>, _> = BranchRecords::circular(&buffer, 12, Layout::Bits32).collect();
/// let from = |(offset, entry)| match entry {
///     Entry::Branch(branch) => (offset, branch.from),
///     Entry::Lost { .. } => unreachable!(),
/// };
/// assert_eq!(read?.into_iter().map(from).collect::<Vec<_>>(), [(0, 0x10), (12, 0x20), (24, 0x30)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BranchRecords<'a> {
    bytes: &'a [u8],
    /// The part after `bytes`: the front of a circular buffer.
    then: &'a [u8],
    layout: Layout,
    /// The offset of the next record, counted from the oldest one.
    offset: u64,
    /// True until a record is returned from a circular buffer's older part, which may never have been written.
    skips_empty: bool,
}

impl<'a> BranchRecords<'a> {
    /// Creates the iterator over the records in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], layout: Layout) -> Self {
        Self { bytes, then: &[], layout, offset: 0, skips_empty: false }
    }

    /// Creates the iterator over a circular buffer, into which the processor would write the next record at the offset
    /// `next`: first the records from there to the end, if they were ever written, then those from the start to there.
    /// A `next` past the end counts as the end.
    #[must_use]
    pub fn circular(bytes: &'a [u8], next: usize, layout: Layout) -> Self {
        let (then, bytes) = bytes.split_at_checked(next).unwrap_or((bytes, &[]));
        // The buffer may be larger than its records.
        let whole = bytes.len() - bytes.len() % layout.record_bytes();
        let bytes = bytes.get(..whole).unwrap_or_default();
        Self { bytes, then, layout, offset: 0, skips_empty: !bytes.is_empty() }
    }

    /// Returns the offset of the next record, in bytes from the oldest one.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    fn take(&mut self, bytes: usize) {
        self.bytes = self.bytes.get(bytes..).unwrap_or_default();
        self.offset += bytes as u64;
    }

    fn next_fixed(&mut self) -> Result<Entry, ErrorKind> {
        let size = self.layout.record_bytes();
        let mut empty = 0;
        while let Ok(record) = BranchRecord::parse(self.layout, self.bytes) {
            if !record.is_empty() {
                break;
            }
            empty += 1;
            self.take(size);
        }
        if empty > 0 {
            return Err(ErrorKind::EmptyRecords { count: empty });
        }
        match BranchRecord::parse(self.layout, self.bytes) {
            Ok(record) => {
                self.take(size);
                Ok(Entry::Branch(record))
            }
            Err(kind) => {
                self.take(self.bytes.len());
                Err(kind)
            }
        }
    }

    /// Returns the next record, or `None` for one that does not concern branches.
    fn next_perf(&mut self) -> Result<Option<Entry>, ErrorKind> {
        let bytes = self.bytes.len();
        let whole = self.bytes.first_chunk::<{ perf::HEADER }>().map(|header| {
            let header = u64::from_le_bytes(*header);
            (header as u32, usize::from((header >> 48) as u16).max(perf::HEADER))
        });
        let Some((kind, size)) = whole else {
            self.take(bytes);
            return Err(ErrorKind::Truncated { bytes, needed: perf::HEADER });
        };
        let Some(record) = self.bytes.get(..size) else {
            self.take(bytes);
            return Err(ErrorKind::Truncated { bytes, needed: size });
        };
        self.take(size);
        match kind {
            // Fields other than these two would be read as addresses.
            perf::SAMPLE if size > self.layout.record_bytes() => Err(ErrorKind::OtherSample { bytes: size }),
            perf::SAMPLE => match BranchRecord::parse(self.layout, record) {
                Ok(branch) if branch.is_empty() => Err(ErrorKind::EmptyRecords { count: 1 }),
                Ok(branch) => Ok(Some(Entry::Branch(branch))),
                Err(kind) => Err(kind),
            },
            perf::LOST => {
                // An identifier, then the count.
                let count = record.get(16..).and_then(|rest| rest.first_chunk()).copied();
                let count = count.ok_or(ErrorKind::Truncated { bytes: size, needed: 24 })?;
                Ok(Some(Entry::Lost { count: u64::from_le_bytes(count) }))
            }
            _ => Ok(None),
        }
    }
}

impl Iterator for BranchRecords<'_> {
    type Item = Result<(u64, Entry), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.bytes.is_empty() {
                self.bytes = core::mem::take(&mut self.then);
                if self.bytes.is_empty() {
                    return None;
                }
            }
            let offset = self.offset;
            let entry = match self.layout {
                Layout::PerfSample => self.next_perf(),
                Layout::Bits32 | Layout::Bits64 => self.next_fixed().map(Some),
            };
            let first = core::mem::take(&mut self.skips_empty);
            match entry {
                Ok(Some(entry)) => return Some(Ok((offset, entry))),
                Ok(None) => {}
                // The oldest record comes after memory that was never written.
                Err(ErrorKind::EmptyRecords { .. }) if first => self.offset = 0,
                Err(kind) => return Some(Err(Error { offset, kind })),
            }
        }
    }
}
