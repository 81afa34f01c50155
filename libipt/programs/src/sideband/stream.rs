//! One file of sideband records.

use crate::args::UsageError;
use crate::file::{FileError, FileRange};
use pugmark_tools::sideband::{NoRecord, StreamConfig, TimedRecord};

/// A file of sideband records.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The file.
    pub name: String,
    /// True if the stream belongs to the traced processor.
    pub primary: bool,
    config: StreamConfig,
    bytes: Vec<u8>,
}

/// A position in a stream: its current record.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'s> {
    /// The stream.
    pub stream: &'s Stream,
    /// Its number among the streams.
    pub number: usize,
    /// The record's offset in the stream, in bytes.
    pub offset: usize,
    size: usize,
}

impl Stream {
    /// Loads a file, or as much of the range as the file holds.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(range: &FileRange, primary: bool, config: StreamConfig) -> Result<Self, UsageError> {
        let failed = |error| UsageError::Records { file: range.name.clone(), error };
        // In libipt's program these numbers are C's `long`, which is signed.
        if range.from.max(range.to.unwrap_or(0)) > i64::MAX.cast_unsigned() {
            return Err(failed("invalid argument"));
        }
        let bytes = range.load_clipped().map_err(|error| {
            failed(match error {
                FileError::Offset { .. } | FileError::Folder { .. } => "out of memory",
                _ => "bad file",
            })
        })?;
        Ok(Self::new(range.name.clone(), bytes, primary, config))
    }

    /// Makes a stream of these bytes.
    #[must_use]
    pub fn new(name: String, bytes: Vec<u8>, primary: bool, config: StreamConfig) -> Self {
        Self { name, primary, config, bytes }
    }

    /// Returns the configuration of its records.
    #[must_use]
    pub fn config(&self) -> &StreamConfig {
        &self.config
    }
}

impl<'s> Cursor<'s> {
    /// Starts before the first record of a stream, which has this number among the streams.
    #[must_use]
    pub fn new(stream: &'s Stream, number: usize) -> Self {
        Self { stream, number, offset: 0, size: 0 }
    }

    /// Goes to the next record and returns it.
    ///
    /// # Errors
    /// [`NoRecord`], after which there are no more records.
    pub fn advance(&mut self) -> Result<TimedRecord<'s>, NoRecord> {
        self.offset += self.size;
        self.size = 0;
        let rest = self.stream.bytes.get(self.offset..).unwrap_or_default();
        let (event, size) = TimedRecord::parse(rest, &self.stream.config)?;
        self.size = size;
        Ok(event)
    }
}
