//! One file of records.

use super::record::{Event, NoRecord};
use super::{Config, Sample};
use crate::file::{self, FileRange};

/// A file of records and the one that is next.
#[derive(Debug)]
pub struct Stream {
    /// The file.
    pub name: String,
    /// Of the traced processor.
    pub primary: bool,
    config: Config,
    bytes: Vec<u8>,
    offset: usize,
    size: usize,
}

/// Why a stream has no next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It ends.
    End,
    /// Its next record cannot be read or placed in time, for this reason.
    Error(&'static str),
}

impl Stream {
    /// Loads a file.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn load(range: &FileRange, primary: bool, config: Config) -> Result<Self, file::Error> {
        Ok(Self::new(range.name.clone(), range.load()?, primary, config))
    }

    /// The records of a file that was read already.
    pub fn new(name: String, bytes: Vec<u8>, primary: bool, config: Config) -> Self {
        Self { name, primary, config, bytes, offset: 0, size: 0 }
    }

    /// Goes to the next record and returns the TSC at which it is due.
    ///
    /// # Errors
    /// [`Stop`], after which there are no more records.
    pub fn advance(&mut self) -> Result<u64, Stop> {
        self.offset += self.size;
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let (event, size) = Event::parse(rest, &self.config).map_err(|error| match error {
            NoRecord::End => Stop::End,
            NoRecord::Malformed => Stop::Error("unknown packet"),
        })?;
        self.size = size;
        self.tsc(&event.sample).ok_or(Stop::Error("bad configuration"))
    }

    /// The record that [`advance`](Self::advance) went to.
    pub fn event(&self) -> Option<Event<'_>> {
        let rest = self.bytes.get(self.offset..)?;
        Event::parse(rest, &self.config).ok().map(|(event, _)| event)
    }

    /// How its records were taken.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its offset.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// When a record is due; at once without a time.
    pub fn tsc(&self, sample: &Sample) -> Option<u64> {
        sample.time.map_or(Some(0), |time| self.config.tsc_of(time))
    }
}
