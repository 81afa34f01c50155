//! Outcomes, targets and events of a trace that comes in slices.

use super::{Kept, Lost, tail::Tail};
use crate::{
    config::Config,
    error::{Error, ErrorKind},
    event::{Counters, EventDecoder, EventState},
    keeper::Lent,
    packet::{Input, Packets},
    query::{BranchEventSink, OpenBranchEvent, QueryDecoder},
};

/// The outcomes, targets and events of a trace that comes in slices: [`QueryDecoder::visit`], from slice to slice.
#[derive(Debug)]
pub struct BranchEventStream<'c, 'm> {
    tail: Tail<'m>,
    answers: BranchEvents<'c, 'm>,
}

/// The state of a stream, without its bytes.
#[derive(Debug)]
struct BranchEvents<'c, 'm> {
    /// The place in the trace.
    packets: Packets<'c>,
    state: &'m mut EventState,
    open: OpenBranchEvent,
    synced: bool,
    errors: u64,
}

impl<'c, 'm> BranchEventStream<'c, 'm> {
    /// Creates a stream in front of its first slice.
    #[must_use]
    pub fn new<const N: usize>(config: Config<'c>, kept: &'m mut Kept<N>) -> Self {
        let packets = Packets::with_config(&[], config);
        let Kept { bytes, state, .. } = kept;
        state.clear();
        let answers = BranchEvents {
            packets,
            state: state.events(),
            open: OpenBranchEvent::NONE,
            synced: false,
            errors: 0,
        };
        Self { tail: Tail::new(bytes), answers }
    }

    /// Decodes the next slice, and passes to `sink` what is certain without the slice after it.
    pub fn decode<S: BranchEventSink>(&mut self, slice: &[u8], sink: &mut S) {
        let Self { tail, answers } = self;
        tail.feed(slice, |input| answers.run(input, sink));
    }

    /// Reports that `bytes` bytes are missing before the next slice; 0 if the number is unknown. Decodes the bytes that
    /// were kept, then restarts at the next PSB.
    pub fn gap<S: BranchEventSink>(&mut self, bytes: u64, sink: &mut S) {
        let offset = self.tail.end();
        self.end(sink);
        sink.lost(&Lost::Gap { offset, bytes });
        self.go_to(offset + bytes);
    }

    /// Ends the stream: decodes the bytes that were kept. The next slice begins another stream, with offset 0.
    pub fn finish<S: BranchEventSink>(&mut self, sink: &mut S) {
        self.end(sink);
        self.go_to(0);
    }

    /// Returns the offset of the next slice's first byte.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.tail.end()
    }

    /// Returns the time of the last branch event: the estimated TSC, 56 bits; `None` before the first TSC packet.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.answers.open.time()
    }

    /// Returns counts of the packets read so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.answers.state.counters()
    }

    /// Returns how many times decoding had to skip to the next PSB because of an error.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.answers.errors
    }

    fn end<S: BranchEventSink>(&mut self, sink: &mut S) {
        let Self { tail, answers } = self;
        tail.finish(|input| answers.run(input, sink));
    }

    fn go_to(&mut self, offset: u64) {
        self.tail.go_to(offset);
        self.answers.synced = false;
        let BranchEvents { packets, state, open, .. } = &mut self.answers;
        packets.restart(offset);
        let mut events: EventDecoder<'_, Lent<'_>> = EventDecoder::with_state(packets.clone(), &mut **state);
        events.restart(offset);
        *open = OpenBranchEvent::NONE;
    }
}

impl BranchEvents<'_, '_> {
    /// Decodes the bytes at hand, and returns the offset from which on bytes are needed again.
    fn run<S: BranchEventSink>(&mut self, input: Input<'_>, sink: &mut S) -> u64 {
        let Self { packets, state, open, synced, errors } = self;
        let mut decoder = over(packets, input, state, open);
        while *synced || decoder.sync_forward().is_some() {
            *synced = true;
            match decoder.visit(sink) {
                Ok(()) | Err(Error { kind: ErrorKind::EndOfSlice, .. }) => break,
                Err(error) => {
                    *synced = false;
                    *errors += 1;
                    sink.lost(&Lost::Error(error));
                }
            }
        }
        let keep = decoder.keep_from();
        *open = decoder.open_branch_event();
        packets.continue_after(decoder.packets(), keep);
        keep
    }
}

/// Returns a decoder of the bytes at hand. Not inlined, to save stack: the decoder is used elsewhere.
#[inline(never)]
fn over<'a, 's>(
    packets: &Packets<'a>,
    input: Input<'a>,
    state: &'s mut EventState,
    open: &OpenBranchEvent,
) -> QueryDecoder<'a, Lent<'s>> {
    let packets = packets.resumed(input, *packets.config());
    QueryDecoder::with_state(EventDecoder::with_state(packets, state), *open)
}
