//! Merges several streams by time.

use super::{Cursor, ShowOptions, Stream};
use pugmark_tools::sideband::{NoRecord, TimedRecord};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write};

/// The streams, ordered by the time of their next record.
#[derive(Debug)]
pub struct MergedStreams<'s> {
    waiting: VecDeque<(TimedRecord<'s>, Cursor<'s>)>,
    /// The numbers of the streams that have ended, the most recent one first.
    ended: Vec<usize>,
}

impl<'s> MergedStreams<'s> {
    /// Goes to the first record of each stream. Streams with records of the same time keep their order. Unreadable
    /// records are reported as lines of `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(streams: &'s [Stream], out: &mut dyn Write) -> io::Result<Self> {
        let mut merged = Self { waiting: VecDeque::new(), ended: Vec::new() };
        for (number, stream) in streams.iter().enumerate().rev() {
            merged.advance(Cursor::new(stream, number), out)?;
        }
        // A stream without any record is ignored.
        merged.ended.clear();
        Ok(merged)
    }

    /// Takes the earliest record if its time is not after `tsc`.
    pub fn next_until(&mut self, tsc: u64) -> Option<(TimedRecord<'s>, Cursor<'s>)> {
        self.waiting.front().filter(|(event, _)| event.tsc <= tsc)?;
        self.waiting.pop_front()
    }

    /// Continues in the stream of a record that was taken. Of several streams with records of the same time, the stream
    /// that was continued last comes first.
    ///
    /// # Errors
    /// Those of `out`. A record that cannot be read is reported as a line and ends its stream.
    pub fn advance(&mut self, mut cursor: Cursor<'s>, out: &mut dyn Write) -> io::Result<()> {
        match cursor.advance() {
            Ok(event) => {
                let place = self.waiting.partition_point(|(other, _)| other.tsc < event.tsc);
                self.waiting.insert(place, (event, cursor));
            }
            Err(NoRecord::Problem(problem)) => report(out, &cursor, "error", &problem)?,
            Err(NoRecord::End) => self.ended.insert(0, cursor.number),
        }
        Ok(())
    }

    /// Returns the numbers of the streams that had records: first those with records left, in the order of these, then
    /// those that have ended.
    pub fn present(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().map(|(_, cursor)| cursor.number).chain(self.ended.iter().copied())
    }

    /// Writes the records up to and including `tsc`.
    ///
    /// # Errors
    /// Those of `out`. Errors in the records are written as lines.
    pub fn show(&mut self, tsc: u64, show: &ShowOptions, out: &mut dyn Write) -> io::Result<()> {
        while let Some((event, cursor)) = self.next_until(tsc) {
            show.event(&event, &cursor, out)?;
            self.advance(cursor, out)?;
        }
        Ok(())
    }
}

/// Writes `[FILE:OFFSET sideband KIND: TEXT]`.
pub(super) fn report(
    out: &mut dyn Write,
    cursor: &Cursor<'_>,
    kind: &str,
    text: &dyn Display,
) -> io::Result<()> {
    writeln!(out, "[{}:{:016x} sideband {kind}: {text}]", cursor.stream.name, cursor.offset)
}
