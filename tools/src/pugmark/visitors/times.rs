//! The times of a session's traces.

use super::TraceClock;
use crate::session::Session;
use pugmark_decoder_core::{
    config::Config,
    time::{Span, Timeline},
};
use rustc_hash::FxHashMap;

/// Computes the times of parts of traces.
pub(in crate::pugmark) struct TraceTimes<'a> {
    clock: TraceClock,
    traces: Vec<&'a [u8]>,
    /// A TSC near those of each trace; 0 if none is known.
    near: Vec<u64>,
    config: Config<'a>,
    /// The number of the current trace, and its timeline.
    now: Option<(usize, Timeline<'a>)>,
    /// The timelines of other traces.
    others: FxHashMap<usize, Timeline<'a>>,
}

impl<'a> TraceTimes<'a> {
    /// Makes the times of a session's traces. [`turn_to`](Self::turn_to) must be called before the first use.
    pub(in crate::pugmark) fn new(session: &Session<'a>, clock: TraceClock) -> Self {
        let (traces, near, config) = (session.traces.clone(), session.near.clone(), session.config);
        Self { clock, traces, near, config, now: None, others: FxHashMap::default() }
    }

    /// Turns to a trace.
    pub(in crate::pugmark) fn turn_to(&mut self, trace: usize) {
        if self.now.as_ref().is_some_and(|(now, _)| *now == trace) {
            return;
        }
        let bytes = self.traces.get(trace).copied().unwrap_or_default();
        let near = self.near.get(trace).copied().unwrap_or(0);
        let timeline =
            self.others.remove(&trace).unwrap_or_else(|| match Timeline::new(bytes, self.config) {
                timeline if near == 0 => timeline,
                timeline => timeline.with_tsc_near(near),
            });
        if let Some((before, timeline)) = self.now.replace((trace, timeline)) {
            self.others.insert(before, timeline);
        }
    }

    /// Returns the time of a part of the trace, and the TSC, as [`TraceClock::time`] does.
    pub(in crate::pugmark) fn moment(&mut self, span: Span, insns: u64) -> Option<(u64, Option<u64>)> {
        let (_, timeline) = self.now.as_mut()?;
        self.clock.time(timeline, span, insns)
    }

    pub(super) fn at(&mut self, span: Span, insns: u64) -> Option<u64> {
        self.moment(span, insns).map(|(at, _)| at)
    }
}
