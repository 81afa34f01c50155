//! A visitor that turns calls and returns into slices.

use super::{MarkRow, Slice, TrackLoss, TrackMark};
use crate::pugmark::visitors::{CallEvent, Time, not_traced};
use rustc_hash::FxHashMap;

/// A consumer of the slices of a track.
pub(super) trait DrawnCallSink {
    /// Returns true if the call that begins at `at` is to be drawn.
    fn wants(&mut self, at: u64) -> bool;

    /// Receives a call that has returned.
    fn call(&mut self, call: DrawnCall);

    /// Receives a period in which nothing was traced, below `depth` functions, because of this system call if it is
    /// known.
    fn untraced(&mut self, from: u64, to: u64, depth: usize, call: Option<&'static str>);
}

/// A call that has returned.
pub(super) struct DrawnCall {
    pub(super) slice: Slice,
    /// The time that its callees took.
    pub(super) inner: u64,
    /// True if the function was called while another call of it had not returned.
    pub(super) is_inner: bool,
}

/// A function that has not been left.
struct OpenCall {
    /// `None` if it is not drawn.
    slice: Option<Slice>,
    /// The number of instructions before.
    begun: u64,
    /// The time that its callees took.
    inner: u64,
}

/// A visitor that turns calls and returns into slices.
pub(super) struct Drawer<S> {
    pub(super) sink: S,
    pub(super) losses: Vec<TrackLoss>,
    pub(super) marks: Vec<TrackMark>,
    /// The number of functions entered.
    pub(super) entered: usize,
    open: Vec<OpenCall>,
    /// The number of calls in `open` by the numbers of their names.
    open_names: Vec<u32>,
    /// The numbers of names and of the places of calls, by a call's own address and the function's.
    numbers: FxHashMap<(Option<u64>, u64), (usize, Option<usize>)>,
    /// The time of a loss, its reason, and the number of functions entered before.
    loss: Option<(u64, String, usize)>,
    /// The time at which tracing went off.
    off: Option<(u64, Option<&'static str>)>,
}

impl<S: DrawnCallSink> Drawer<S> {
    pub(super) fn new(sink: S) -> Self {
        Self {
            sink,
            losses: vec![],
            marks: vec![],
            entered: 0,
            open: vec![],
            open_names: vec![],
            numbers: FxHashMap::default(),
            loss: None,
            off: None,
        }
    }

    /// Adds an event. `name` gives the numbers of a function's name and of the place of its call.
    pub(super) fn add(
        &mut self,
        time: Time,
        what: CallEvent,
        name: &mut dyn FnMut(Option<u64>, u64) -> (usize, Option<usize>),
    ) {
        match what {
            CallEvent::Enter { from, to } | CallEvent::Again { from, to } => {
                self.lost_until(time);
                let (at, depth, order) = (time.at, self.open.len(), self.entered);
                self.entered += 1;
                let Self { numbers, open_names, .. } = self;
                let slice = self.sink.wants(at).then(|| {
                    let (name, call) = *numbers.entry((from, to)).or_insert_with(|| name(from, to));
                    open_names.resize(open_names.len().max(name + 1), 0);
                    open_names[name] += 1;
                    Slice { from: at, to: at, depth, order, name, call, insns: 0 }
                });
                self.open.push(OpenCall { slice, begun: time.insns, inner: 0 });
            }
            CallEvent::Leave | CallEvent::Back => self.leave(time),
            CallEvent::Loss(why) => self.loss = Some((time.at, why, self.entered)),
            CallEvent::Mark(kind, text) => self.mark(time, MarkRow::Of(kind), text),
            CallEvent::Off(call) => {
                self.off = Some((time.at, call));
                self.mark(time, MarkRow::Off, not_traced(call).into_owned());
            }
            CallEvent::On => {
                self.traced_again(time);
                self.mark(time, MarkRow::On, "traced again".into());
            }
            CallEvent::End(_) => self.traced_again(time),
        }
    }

    fn leave(&mut self, time: Time) {
        let Some(OpenCall { slice: Some(slice), begun, inner }) = self.open.pop() else { return };
        if let Some(caller) = self.open.last_mut() {
            caller.inner += time.at - slice.from;
        }
        let open = &mut self.open_names[slice.name];
        *open -= 1;
        let is_inner = *open > 0;
        let slice = Slice { to: time.at, insns: time.insns - begun, ..slice };
        self.sink.call(DrawnCall { slice, inner, is_inner });
    }

    fn traced_again(&mut self, time: Time) {
        let Some((from, call)) = self.off.take() else { return };
        if let Some(innermost) = self.open.last_mut() {
            innermost.inner += time.at - from;
        }
        self.sink.untraced(from, time.at, self.open.len(), call);
    }

    fn mark(&mut self, time: Time, row: MarkRow, text: String) {
        self.marks.push(TrackMark { at: time.at, row, text });
    }

    /// Ends a loss, where tracing goes on or the trace ends.
    pub(super) fn lost_until(&mut self, time: Time) {
        if let Some((from, why, order)) = self.loss.take() {
            self.losses.push(TrackLoss { from, to: time.at, why, order });
        }
    }
}
