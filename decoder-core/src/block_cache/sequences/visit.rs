//! Sequences in a visit, in place of the branches that would be read ahead next.

use super::{
    super::{BlockCache, ExecutionSink, scratch::Scratch, visit::CacheWalk},
    At, Bytes, TURN, Worth,
};
use crate::{block::BlockDecoder, keeper::Keeper};

/// Returns true if a sink benefits from sequences.
pub(in crate::block_cache) const fn wanted<S: ExecutionSink>() -> bool {
    S::COUNTS && S::EDGES && !S::INSNS && !S::BLOCKS && !S::FILLS && !S::SPANS
}

/// The result of taking sequences.
pub(in crate::block_cache) struct CountedSequences {
    /// The offset after the last sequence, if there was one.
    pub(in crate::block_cache) end: Option<u64>,
    /// The offset up to which to read before the next attempt.
    pub(in crate::block_cache) until: Option<u64>,
}

impl<K: Keeper> BlockDecoder<'_, K> {
    /// Takes the known sequences that come next, and remembers those that came often enough. Notes a place at or before
    /// the start of the last one taken.
    #[inline(never)]
    pub(in crate::block_cache) fn take_sequences<S: ExecutionSink>(
        &mut self,
        cache: &mut BlockCache<'_>,
        walk: &mut CacheWalk,
        sink: &mut S,
    ) -> CountedSequences {
        let mut repeated = CountedSequences { end: None, until: None };
        let Self { walker, scratch, .. } = self;
        let Scratch { calls, sequences, .. } = &mut **scratch;
        let Some((trace, mut place)) = walker.whole_packets() else { return repeated };
        if !super::is_canonical(place.ip) {
            return repeated;
        }
        let mut at = At { block: walk.block, before: walk.before, top: walk.top };
        loop {
            let taken = cache.sequences.take(&mut at, calls, trace, &mut place, |edge| sink.edge(edge));
            if taken > 0 {
                *sequences = walker.start();
                walker.go_to(&place);
                repeated.end = Some(walker.used().0);
                (walk.block, walk.before, walk.top) = (at.block, at.before, at.top);
            }
            if taken == TURN {
                continue;
            }
            let Some(bytes) = Bytes::at(trace, place.at) else { return repeated };
            if cache.sequences.miss(at.block, &bytes)
                && cache.build_sequence(&at, calls, &bytes, place.ip, |edge, times| sink.edges(edge, times))
            {
                continue;
            }
            if cache.sequences.worth.credit >= Worth::LOW {
                repeated.until = Some(walker.used().0 + bytes.until_next() as u64);
            }
            return repeated;
        }
    }

    /// Finds the last block before the end of sequences, by reading those branches again.
    #[cold]
    #[inline(never)]
    pub(in crate::block_cache) fn place_sequences(&mut self, end: u64) {
        let here = self.walker.start();
        self.walker.return_to(&self.scratch.sequences);
        loop {
            self.scratch.last.start = self.walker.start();
            self.read_ahead(Some(end));
            if self.scratch.ahead.is_empty() || self.walker.used().0 >= end {
                break;
            }
        }
        self.walker.return_to(&here);
        let Scratch { ahead, last, .. } = &mut *self.scratch;
        (last.before_last, last.cursor) = (ahead.before(ahead.end()), ahead.end());
    }
}
