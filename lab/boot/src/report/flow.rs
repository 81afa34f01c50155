//! Reports a trace of control flow.

use alloc::vec::Vec;
use pugmark_boot::archive::Archive;
use pugmark_boot::histogram::Histogram;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::Section;
use pugmark_protocol::{Line, Lost, Piece, Records, Stat, Top};

use super::error::RecordingError;
use super::session::SessionReport;
use crate::arch::serial::say;
use crate::arch::{clock, console};

/// Number of hottest functions that are printed.
const TOP: usize = 5;

/// A decoded trace.
pub(crate) struct Flow {
    pub(crate) pieces: Vec<Piece>,
    /// The records of a source with branch records.
    pub(crate) records: Option<Vec<Records>>,
    pub(crate) total: AddressHash,
    /// The number of OVF packets.
    pub(crate) overflows: u64,
    /// The first decoding error, if any.
    pub(crate) error: Option<RecordingError>,
}

impl SessionReport<'_> {
    /// Decodes a trace with `decode`, unless the command line forbids it, and reports the result. Returns whether the
    /// whole trace was decoded without a loss.
    ///
    /// # Errors
    /// If the trace does not match the plan.
    pub(crate) fn say_flow(
        &self,
        archive: &Archive,
        decode: impl FnOnce(&[Section<'_>], &mut Histogram<'_>) -> Flow,
    ) -> Result<bool, RecordingError> {
        let &Self { name, plan, loss, counts, options, .. } = self;
        if options.no_decode {
            return Ok(false);
        }
        let sections = self.sections();
        let mut histogram = Histogram::new(self.symbols);
        let before = clock::tsc();
        let Flow { pieces, records, total, overflows, error } = decode(&sections, &mut histogram);
        let decode_us = clock::microseconds(clock::tsc() - before);
        let lost = Lost {
            overflows,
            stops: loss.stop,
            // A ring that may have wrapped counts as a loss.
            wraps: loss.wrap + loss.perhaps_wrapped,
            full: loss.full + archive.full(),
            strays: counts.stray,
        };
        let stat = Stat {
            count: total.count(),
            hash: total.value(),
            bytes: archive.trace().len() as u64,
            pmis: counts.served + counts.unannounced,
            loss: lost.total(),
            decode_us: Some(decode_us),
            branches: records.as_ref().map(|records| records.iter().map(|records| records.count).sum()),
        };
        say(Line::Stat(name, stat));
        for (rank, (function, count)) in (1..).zip(histogram.top(TOP)) {
            let symbol = rustc_demangle::demangle(function.name);
            say(Line::Top(name, Top { rank, symbol: &format_args!("{symbol:#}"), count }));
        }
        for (index, piece) in pieces.into_iter().enumerate() {
            say(Line::Piece(name, index, piece));
        }
        for (index, records) in records.into_iter().flatten().enumerate() {
            say(Line::Records(name, index, records));
        }
        say(Line::Lost(name, lost));
        if options.dump {
            for segment in archive.segments() {
                say(Line::Dump(name, segment.bytes.len() as u64));
                console::send(segment.bytes);
            }
            self.say_code(&sections);
        }
        if let Some(error) = error {
            return Err(error);
        }
        if total.count() == 0 {
            return Err(RecordingError::Empty);
        }
        plan.expected.check(lost, options.overflows).map_err(RecordingError::Loss)?;
        Ok(lost.total() == 0)
    }
}
