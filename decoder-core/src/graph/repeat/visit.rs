//! Repeats in a visit: instead of the part of the branches that would be read ahead next.

use super::{
    super::{
        ExecutionSink, Graph,
        branches::{BranchCursor, BranchesAhead},
        calls::GraphCalls,
        visit::GraphWalk,
    },
    At, Bytes, TURN, Worth,
};
use crate::{block::BlockDecoder, flow::Start};

/// Whether repeats are of use to a sink.
pub(in crate::graph) const fn wanted<S: ExecutionSink>() -> bool {
    S::COUNTS && S::EDGES && !S::INSNS && !S::BLOCKS && !S::FILLS && !S::SPANS
}

/// How a walk went on by repeats.
pub(in crate::graph) struct Repeated {
    /// Where the last of them began, if there were any, or some before it, and the offset where they ended.
    pub(in crate::graph) taken: Option<(Start, u64)>,
    /// Up to which offset to read before the next attempt.
    pub(in crate::graph) until: Option<u64>,
}

impl BlockDecoder<'_> {
    /// Goes on by repeats that are known, and remembers those that came often enough.
    #[inline(never)]
    pub(in crate::graph) fn take_repeats<S: ExecutionSink>(
        &mut self,
        graph: &mut Graph<'_>,
        walk: &mut GraphWalk,
        calls: &mut GraphCalls,
        sink: &mut S,
    ) -> Repeated {
        let mut repeated = Repeated { taken: None, until: None };
        let Some((trace, mut place)) = self.walker.whole_packets() else { return repeated };
        if !super::is_canonical(place.ip) {
            return repeated;
        }
        let mut at = At { block: walk.block, before: walk.before, top: walk.top };
        loop {
            let taken = graph.repeats.take(&mut at, calls, trace, &mut place, |edge| sink.edge(edge));
            if taken > 0 {
                let start = self.walker.start();
                self.walker.go_to(&place);
                repeated.taken = Some((start, self.walker.used().0));
                (walk.block, walk.before, walk.top) = (at.block, at.before, at.top);
            }
            if taken == TURN {
                continue;
            }
            let Some(bytes) = Bytes::at(trace, place.at) else { return repeated };
            if graph.repeats.miss(at.block, &bytes)
                && graph.build_repeat(&at, calls, &bytes, place.ip, |edge, times| sink.edges(edge, times))
            {
                continue;
            }
            if graph.repeats.worth.credit >= Worth::LOW {
                repeated.until = Some(self.walker.used().0 + bytes.until_next() as u64);
            }
            return repeated;
        }
    }

    /// Where the last block before the end of repeats began, as a part of the branches that is read again.
    #[cold]
    #[inline(never)]
    pub(in crate::graph) fn place_repeats(
        &mut self,
        (mut start, end): (Start, u64),
        ahead: &mut BranchesAhead,
    ) -> (Start, BranchCursor, BranchCursor) {
        let here = self.walker.clone();
        self.walker.return_to(&start);
        loop {
            self.read_ahead(ahead, Some(end));
            if ahead.is_empty() || self.walker.used().0 >= end {
                break;
            }
            start = self.walker.start();
        }
        self.walker = here;
        (start, ahead.before(ahead.end()), ahead.end())
    }
}
