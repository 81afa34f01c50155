//! The instruction at which the kernel switches threads.
//!
//! The record of a switch has a time, and where that is in a trace is an estimate. If it is known where the kernel's
//! function begins that switches threads, what comes before it in a trace is the old thread's, and what comes after it
//! the new one's, as with perf (tools/perf/util/intel-pt.c, `intel_pt_sample`, which waits for the record or for the
//! function, whichever comes later).

use super::{SliceEnd, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block::Block,
    block_cache::{ExecutionSink, InstructionRun},
    event::{Event, EventKind},
    resume::Lost,
    time::Span,
};

/// The lowest address of the kernel.
const KERNEL: u64 = super::places::KERNEL;

/// Whose a trace is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TraceOwner {
    /// The lane of the thread that runs, once there is one.
    lane: Option<usize>,
    /// The lane that follows where the function begins.
    next: Option<usize>,
    /// The lane of a slice that has not begun, though the function has.
    early: Option<usize>,
}

/// Passes a slice to the sink of the thread that runs.
pub(super) struct SwitchedSink<'s, S> {
    pub(super) sinks: &'s mut [S],
    pub(super) owner: &'s mut TraceOwner,
    /// The slice, with the lane of the thread that runs.
    slice: TraceSlice,
    /// The lane of the next slice of the trace, if another thread runs there.
    after: Option<usize>,
    /// Where the function begins.
    at: u64,
    /// The kernel was executed in this slice: the last block of the program before comes with the packet after it.
    was_in_kernel: bool,
    /// The block that comes next.
    insns: Vec<InstructionRun>,
    span: Span,
}

impl<'s, S: SliceSink> SwitchedSink<'s, S> {
    /// Begins a slice. `after` is the lane of the next one, if another thread runs there.
    pub(super) fn new(
        sinks: &'s mut [S],
        owner: &'s mut TraceOwner,
        slice: &TraceSlice,
        after: Option<usize>,
        at: u64,
    ) -> Self {
        // A slice may end before the function has begun: then nothing tells better than the slice.
        let now = owner.next.take().or(owner.lane);
        let waits = slice.is_switch && owner.early != Some(slice.lane);
        let lane = now.filter(|now| waits && *now != slice.lane).unwrap_or(slice.lane);
        *owner =
            TraceOwner { lane: Some(lane), next: Some(slice.lane).filter(|next| *next != lane), early: None };
        let slice = TraceSlice { lane, ..slice.clone() };
        let (insns, span) = (vec![], Span::default());
        let mut sink = Self { sinks, owner, slice, after, at, was_in_kernel: false, insns, span };
        sink.begin();
        sink
    }

    /// Returns the sink of the thread that runs, or the only sink.
    fn sink(&mut self) -> Option<&mut S> {
        let lane = if self.sinks.len() == 1 { 0 } else { self.slice.lane };
        self.sinks.get_mut(lane)
    }

    fn begin(&mut self) {
        let slice = self.slice.clone();
        self.sink().into_iter().for_each(|sink| sink.begins(&slice));
    }

    fn turn_to(&mut self, lane: usize) {
        self.slice.lane = lane;
        self.owner.lane = Some(lane);
        self.begin();
    }

    /// Turns to the next thread, because the function begins.
    fn switches(&mut self) {
        if let Some(next) = self.owner.next.take() {
            self.turn_to(next);
        } else if let Some(after) = self.after.filter(|after| *after != self.slice.lane) {
            self.owner.early = Some(after);
            self.turn_to(after);
        }
    }

    /// Turns to the next thread if the function has begun where nothing was traced or something is missing.
    fn has_switched(&mut self) {
        if let Some(next) = self.owner.next.take() {
            self.turn_to(next);
        }
    }

    /// Passes on a block and its instructions.
    fn part(&mut self, insns: &[InstructionRun], block: &Block) {
        let span = self.span;
        let Some(sink) = self.sink() else { return };
        if S::INSNS {
            insns.iter().for_each(|insns| sink.insns(*insns));
        }
        if S::SPANS {
            sink.span(span);
        }
        // No cache holds parts of blocks.
        if S::BLOCKS && (!S::NUMBERS || sink.passes(0)) {
            sink.block(block);
        }
    }

    /// Passes on a block in which the function begins, after the first of its instructions.
    fn split(&mut self, insns: &[InstructionRun], first: usize, block: &Block) {
        let (before, after) = insns.split_at(first);
        let count = before.iter().copied().flatten().count() as u32;
        if let Some(end_ip) = before.iter().copied().flatten().last() {
            self.part(before, &Block { end_ip, insns: count, truncated: false, ..*block });
        }
        self.switches();
        self.part(after, &Block { ip: self.at, insns: block.insns.saturating_sub(count), ..*block });
    }
}

impl<S: SliceSink> SliceSink for SwitchedSink<'_, S> {
    const ENDS_EARLY: bool = S::ENDS_EARLY;

    fn stops(&mut self, end: SliceEnd) {
        self.sink().into_iter().for_each(|sink| sink.stops(end));
    }

    fn is_done(&self) -> bool {
        self.sinks.iter().any(SliceSink::is_done)
    }
}

impl<S: SliceSink> ExecutionSink for SwitchedSink<'_, S> {
    const INSNS: bool = true;
    const BLOCKS: bool = true;
    const SPANS: bool = S::SPANS;

    #[inline]
    fn insns(&mut self, insns: InstructionRun) {
        self.insns.push(insns);
    }

    #[inline]
    fn span(&mut self, span: Span) {
        self.span = span;
    }

    #[inline]
    fn block(&mut self, block: &Block) {
        let mut insns = std::mem::take(&mut self.insns);
        if block.ip >= KERNEL {
            self.was_in_kernel = true;
        } else if self.was_in_kernel {
            self.has_switched();
        }
        match insns.iter().position(|insns| insns.ip == self.at) {
            Some(first) => self.split(&insns, first, block),
            None => self.part(&insns, block),
        }
        insns.clear();
        self.insns = insns;
    }

    fn event(&mut self, event: &Event) {
        self.sink().into_iter().for_each(|sink| sink.event(event));
        if matches!(event.kind, EventKind::Overflow | EventKind::Disabled | EventKind::AsyncDisabled { .. }) {
            self.has_switched();
        }
    }

    fn lost(&mut self, lost: &Lost) {
        self.sink().into_iter().for_each(|sink| sink.lost(lost));
        self.has_switched();
    }

    fn reached(&mut self, offset: u64) {
        self.sink().into_iter().for_each(|sink| sink.reached(offset));
    }
}
