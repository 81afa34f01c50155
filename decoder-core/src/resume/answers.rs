//! Outcomes, targets and events of a trace that comes in slices.

use super::{Lost, by_the_manual, tail::Tail};
use crate::{
    config::Config,
    error::{Error, ErrorKind},
    event::Counters,
    packet::Input,
    query::{AnswerSink, QueryDecoder},
};

/// Answers where each branch went in a trace that comes in slices: [`QueryDecoder::visit`], from slice to slice.
#[derive(Debug)]
pub struct AnswerStream<'c, 'm> {
    tail: Tail<'m>,
    answers: Answers<'c>,
}

/// A stream without its bytes.
#[derive(Debug)]
struct Answers<'c> {
    /// Between two slices, always there.
    decoder: Option<QueryDecoder<'c>>,
    config: Config<'c>,
    synced: bool,
    errors: u64,
}

impl<'c, 'm> AnswerStream<'c, 'm> {
    /// A stream in front of its first slice. What must be kept of slices goes into `kept`: [`KEPT`](super::KEPT) bytes
    /// will do; fewer than 1024 do not compile.
    #[must_use]
    pub fn new<const N: usize>(config: Config<'c>, kept: &'m mut [u8; N]) -> Self {
        let config = by_the_manual(config);
        let decoder = Some(QueryDecoder::with_config(&[], config));
        Self { tail: Tail::new(kept), answers: Answers { decoder, config, synced: false, errors: 0 } }
    }

    /// Decodes the next slice, and passes on to `sink` what is certain without the slice after it.
    pub fn decode<S: AnswerSink>(&mut self, slice: &[u8], sink: &mut S) {
        let Self { tail, answers } = self;
        tail.feed(slice, |input| answers.run(input, sink));
    }

    /// Says that `bytes` bytes are missing before the next slice; 0 if it is not known how many. What was kept is
    /// decoded, then decoding restarts at the next PSB.
    pub fn gap<S: AnswerSink>(&mut self, bytes: u64, sink: &mut S) {
        let offset = self.tail.end();
        self.end(sink);
        sink.lost(&Lost::Gap { offset, bytes });
        self.go_to(offset + bytes);
    }

    /// Says that the stream ends: what was kept is decoded. The next slice begins another stream, with offset 0.
    pub fn finish<S: AnswerSink>(&mut self, sink: &mut S) {
        self.end(sink);
        self.go_to(0);
    }

    /// The offset of the next slice's first byte.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.tail.end()
    }

    /// The time of the last answer: the estimated TSC, 56 bits; `None` before the first TSC packet.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.answers.decoder.as_ref().and_then(QueryDecoder::time)
    }

    /// Counts of the packets read so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.answers.decoder.as_ref().map(QueryDecoder::counters).unwrap_or_default()
    }

    /// How many times decoding had to skip to the next PSB because of an error.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.answers.errors
    }

    fn end<S: AnswerSink>(&mut self, sink: &mut S) {
        let Self { tail, answers } = self;
        tail.finish(|input| answers.run(input, sink));
    }

    fn go_to(&mut self, offset: u64) {
        self.tail.go_to(offset);
        self.answers.synced = false;
        if let Some(decoder) = &mut self.answers.decoder {
            decoder.restart(offset);
        }
    }
}

impl Answers<'_> {
    /// Decodes what is at hand, and returns the offset from which on bytes are needed again.
    fn run<S: AnswerSink>(&mut self, input: Input<'_>, sink: &mut S) -> u64 {
        let Some(decoder) = self.decoder.take() else { return input.base };
        let mut decoder = decoder.resumed(input, self.config);
        while self.synced || decoder.sync_forward().is_some() {
            self.synced = true;
            match decoder.visit(sink) {
                Ok(()) | Err(Error { kind: ErrorKind::EndOfSlice, .. }) => break,
                Err(error) => {
                    self.synced = false;
                    self.errors += 1;
                    sink.lost(&Lost::Error(error));
                }
            }
        }
        let keep = decoder.keep_from();
        self.decoder = Some(decoder.resumed(Input { bytes: &[], base: keep, ..input }, self.config));
        keep
    }
}
