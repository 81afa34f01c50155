//! The calls and PTWRITEs at which a part begins and ends.

use super::{Between, FoundEdges, PartEdge, PartEnd};
use crate::pugmark::{
    visitors::{CallEvent, MarkKind, Time, Visitor},
    wanted_function::WantedFunction,
};
use crate::symbols::TracedSymbols;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// A visitor that finds the edges of a part in a thread.
pub(super) struct CallEdges<'f> {
    between: &'f Between,
    names: &'f TracedSymbols,
    /// The numbers of the first instruction of the part, and of the first one after it, as far as they are known.
    from: Option<u64>,
    to: Option<u64>,
    /// The number of functions that have not been left.
    depth: usize,
    /// The same where the part begins with a call.
    begins_at: Option<usize>,
    /// Each address that was called, and whether the part may begin or end there.
    known: FxHashMap<u64, [bool; 2]>,
}

impl<'f> CallEdges<'f> {
    /// Makes the visitor of a thread with this window, as far as times say it.
    pub(super) fn new(between: &'f Between, names: &'f TracedSymbols, window: Range<u64>) -> Self {
        let knows_from = between.from.as_ref().is_none_or(|edge| edge.time().is_some());
        let knows_to = match &between.to {
            PartEnd::Trace => true,
            PartEnd::Return => false,
            PartEnd::PartEdge(edge) => edge.time().is_some(),
        };
        Self {
            between,
            names,
            from: knows_from.then_some(window.start),
            to: knows_to.then_some(window.end),
            depth: 0,
            begins_at: None,
            known: FxHashMap::default(),
        }
    }

    /// Ends the trace, and returns the window.
    pub(super) fn end(self, found: &mut FoundEdges) -> Range<u64> {
        found.from |= self.from.is_some();
        found.to |= self.to.is_some();
        let called = self.known.keys().filter_map(|to| self.names.function(*to));
        found.called.extend(called.map(|(name, _)| name.to_owned()));
        self.from.unwrap_or(u64::MAX)..self.to.unwrap_or(u64::MAX)
    }

    /// Notes that the next instruction, with this number, may be an edge.
    fn reaches(&mut self, [is_from, is_to]: [bool; 2], number: u64) {
        if self.from.is_none() {
            if is_from && self.to.is_none_or(|to| number < to) {
                (self.from, self.begins_at) = (Some(number), Some(self.depth));
            }
        } else if is_to && self.to.is_none() && self.from.is_some_and(|from| number >= from) {
            self.to = Some(number);
        }
    }

    /// Returns true for an edge at which the part begins, and for one at which it ends, if `is_one` is true of it.
    fn edges(&self, is_one: impl Fn(&PartEdge) -> bool) -> [bool; 2] {
        let to = matches!(&self.between.to, PartEnd::PartEdge(edge) if is_one(edge));
        [self.between.from.as_ref().is_some_and(&is_one), to]
    }
}

impl Visitor for CallEdges<'_> {
    fn call_event(&mut self, time: Time, what: CallEvent) {
        match what {
            CallEvent::Enter { to, .. } => {
                self.depth += 1;
                let known = self.known.get(&to).copied().unwrap_or_else(|| {
                    let begins = |wanted: &WantedFunction| wanted.called(to, self.names) == Some(0);
                    let edges =
                        self.edges(|edge| matches!(edge, PartEdge::Function(wanted) if begins(wanted)));
                    self.known.insert(to, edges);
                    edges
                });
                self.reaches(known, time.insns);
            }
            CallEvent::Again { .. } => self.depth += 1,
            CallEvent::Leave | CallEvent::Back => {
                self.depth = self.depth.saturating_sub(1);
                let has_left = self.begins_at.is_some_and(|depth| self.depth < depth);
                if has_left && self.between.to == PartEnd::Return && self.to.is_none() {
                    self.to = Some(time.insns);
                }
            }
            CallEvent::Mark(MarkKind::Written, text) => {
                let is_it = |value: &u64| text == MarkKind::written(*value);
                let edges = self.edges(|edge| matches!(edge, PartEdge::Written(value) if is_it(value)));
                self.reaches(edges, time.insns);
            }
            _ => {}
        }
    }
}
