//! Calls in few bytes: chunks of some thousand, in columns of small numbers, compressed.

use super::levels::{Bar, LEVELS};
use miniz_oxide::deflate::compress_to_vec_zlib;
use rustc_hash::FxHashMap;

/// The number of bars in a full chunk. A page reads a chunk as a whole.
const FULL: usize = 8192;
/// The number of depths that share chunks: about as many as a window shows.
pub(super) const DEPTHS: usize = 64;
/// The compressor's effort, from 0 to 10.
const EFFORT: u8 = 5;

/// The content of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ChunkKind {
    /// Calls, each by itself.
    Calls,
    /// Runs of calls that are too short for the level.
    Runs,
}

/// The place of a chunk in the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ChunkKey {
    /// The number of the thread, or of the trace alone.
    pub(super) lane: usize,
    /// The depth divided by [`DEPTHS`].
    pub(super) group: usize,
    pub(super) level: u32,
    pub(super) kind: ChunkKind,
}

impl ChunkKey {
    pub(super) const fn new(lane: usize, depth: usize, level: u32, kind: ChunkKind) -> Self {
        Self { lane, group: depth / DEPTHS, level, kind }
    }
}

/// A compressed chunk.
pub(super) struct Chunk {
    pub(super) key: ChunkKey,
    /// The begin of the first bar, and the end of the last.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) count: usize,
    pub(super) bytes: Vec<u8>,
}

/// All chunks of a page.
pub(super) struct EndedChunks {
    pub(super) chunks: Vec<Chunk>,
    /// The levels that have runs; the first one is the lowest that has calls.
    pub(super) levels: Vec<u32>,
    /// The number of calls, with those that are only in runs.
    pub(super) calls: u64,
    /// The number of calls that are only in runs.
    pub(super) merged: u64,
}

/// The chunks of a page, whose bytes are limited.
pub(super) struct PageChunks {
    open: FxHashMap<ChunkKey, Vec<Bar>>,
    ended: Vec<Chunk>,
    /// The bytes of those that have ended, and the most that there may be.
    size: u64,
    most: u64,
    /// The number of calls of each level.
    calls: [u64; LEVELS as usize],
    /// The lowest level that is kept.
    finest: u32,
    /// The levels whose runs are not kept: a picture of the level below has hardly more bars. The highest one, which
    /// has the whole run in the end, is never one of them.
    worthless: [bool; LEVELS as usize],
}

impl PageChunks {
    pub(super) fn new(most: u64) -> Self {
        let (open, ended) = (FxHashMap::default(), vec![]);
        Self {
            open,
            ended,
            size: 0,
            most,
            calls: [0; LEVELS as usize],
            finest: 0,
            worthless: [false; LEVELS as usize],
        }
    }

    /// Adds a bar.
    pub(super) fn push(&mut self, key: ChunkKey, bar: Bar) {
        if key.kind == ChunkKind::Calls {
            self.calls[key.level as usize] += 1;
        }
        let is_worthless = key.kind == ChunkKind::Runs && self.worthless[key.level as usize];
        if key.level < self.finest || is_worthless {
            return;
        }
        let bars = self.open.entry(key).or_default();
        bars.push(bar);
        if bars.len() == FULL {
            let bars = std::mem::take(bars);
            self.end(key, bars);
        }
    }

    fn end(&mut self, key: ChunkKey, mut bars: Vec<Bar>) {
        // A shorter one is inside a longer one that begins at the same time, or empty.
        bars.sort_by_key(|bar| (bar.from, bar.depth));
        let first = bars.first().map_or(0, |bar| bar.from);
        let last = bars.iter().map(|bar| bar.to).max().unwrap_or(first);
        let bytes = compress_to_vec_zlib(&columns(&bars, first), EFFORT);
        self.size += bytes.len() as u64;
        self.ended.push(Chunk { key, from: first, to: last, count: bars.len(), bytes });
        while self.size > self.most && self.finest + 1 < LEVELS {
            if !self.forget_worthless() {
                self.forget_finest();
            }
        }
    }

    /// Drops the runs of levels that are not worth their bytes. Returns true if there were any.
    fn forget_worthless(&mut self) -> bool {
        let (worth, before) = (self.worthwhile(), self.ended.len());
        for level in self.finest + 1..LEVELS - 1 {
            self.worthless[level as usize] |= !worth.contains(&level);
        }
        let worthless = self.worthless;
        self.keep(|key| key.kind == ChunkKind::Calls || !worthless[key.level as usize]);
        self.ended.len() < before
    }

    /// Keeps only these chunks.
    fn keep(&mut self, is_kept: impl Fn(&ChunkKey) -> bool) {
        self.open.retain(|key, _| is_kept(key));
        self.ended.retain(|chunk| is_kept(&chunk.key));
        self.size = self.ended.iter().map(|chunk| chunk.bytes.len() as u64).sum();
    }

    /// Drops the shortest calls, and the runs that only a zoom to them would show.
    fn forget_finest(&mut self) {
        let runs = (self.finest + 1..LEVELS - 1).find(|level| !self.worthless[*level as usize]);
        let finest = runs.unwrap_or(LEVELS - 1);
        self.finest = finest;
        self.keep(|key| key.level >= finest);
    }

    /// Ends all chunks and returns them in order, without the levels of runs that are not worth their bytes: a picture
    /// that has hardly fewer bars than that of the level below is drawn by that.
    pub(super) fn finish(mut self) -> EndedChunks {
        let mut keys: Vec<_> = self.open.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            // Those of a level that has been dropped meanwhile are gone.
            if let Some(bars) = self.open.remove(&key).filter(|bars| !bars.is_empty()) {
                self.end(key, bars);
            }
        }
        let levels = self.worthwhile();
        self.ended.retain(|chunk| chunk.key.kind == ChunkKind::Calls || levels.contains(&chunk.key.level));
        self.ended.sort_by_key(|chunk| (chunk.key, chunk.from));
        let merged = self.calls[..self.finest as usize].iter().sum();
        EndedChunks { chunks: self.ended, levels, calls: self.calls.iter().sum(), merged }
    }

    /// Returns the levels whose runs are kept.
    fn worthwhile(&self) -> Vec<u32> {
        let count = |wanted: &dyn Fn(&ChunkKey) -> bool| -> usize {
            let ended = self.ended.iter().map(|chunk| (&chunk.key, chunk.count));
            let open = self.open.iter().map(|(key, bars)| (key, bars.len()));
            ended.chain(open).filter(|(key, _)| wanted(key)).map(|(_, count)| count).sum()
        };
        let shown = |level: u32| {
            count(&|key| match key.kind {
                ChunkKind::Calls => key.level >= level,
                ChunkKind::Runs => key.level == level,
            })
        };
        let (mut levels, mut before) = (vec![self.finest], shown(self.finest));
        for level in self.finest + 1..LEVELS {
            let bars = shown(level);
            if !self.worthless[level as usize] && bars * 5 < before * 3 {
                levels.push(level);
                before = bars;
            }
        }
        levels
    }

    /// Returns the bars that no chunk has yet.
    #[cfg(test)]
    pub(super) fn open_bars(&self) -> impl Iterator<Item = (&ChunkKey, &Bar)> {
        self.open.iter().flat_map(|(key, bars)| bars.iter().map(move |bar| (key, bar)))
    }
}

/// Returns the columns of a chunk one after another: the begin of each bar since the one before, its time, its depth in
/// the group, its site, amount and inner time. Each number is in groups of seven bits, the lowest first, with the
/// highest bit of a byte set if another byte follows.
fn columns(bars: &[Bar], first: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(bars.len() * 8);
    let mut column =
        |value: &mut dyn FnMut(&Bar) -> u64| bars.iter().for_each(|bar| varint(&mut bytes, value(bar)));
    let mut before = first;
    column(&mut |bar| bar.from - std::mem::replace(&mut before, bar.from));
    column(&mut |bar| bar.to - bar.from);
    column(&mut |bar| (bar.depth % DEPTHS) as u64);
    column(&mut |bar| u64::from(bar.site));
    column(&mut |bar| bar.amount);
    column(&mut |bar| bar.inner);
    bytes
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::timeline::levels::LaneRuns;
    use miniz_oxide::inflate::decompress_to_vec_zlib;
    use std::cell::RefCell;

    #[test]
    fn a_chunk_is_columns_of_small_numbers_in_the_order_of_begins() {
        let mut chunks = PageChunks::new(u64::MAX);
        let key = ChunkKey::new(3, 65, 2, ChunkKind::Calls);
        let inner = Bar { from: 1010, to: 1030, depth: 66, site: 300, amount: 5, inner: 0 };
        chunks.push(key, inner);
        chunks.push(key, Bar { from: 1000, to: 1040, depth: 65, site: 1, amount: 200, inner: 20 });
        let EndedChunks { chunks, levels, calls, merged } = chunks.finish();
        assert_eq!((calls, merged, levels[0]), (2, 0, 0));
        let [chunk] = &chunks[..] else { panic!("{} chunks", chunks.len()) };
        assert_eq!((chunk.key, chunk.from, chunk.to, chunk.count), (key, 1000, 1040, 2));
        let bytes = decompress_to_vec_zlib(&chunk.bytes).unwrap();
        assert_eq!(bytes, [0, 10, 40, 20, 1, 2, 1, 0xac, 2, 0xc8, 1, 5, 20, 0]);
    }

    #[test]
    fn runs_that_are_not_worth_their_bytes_go_before_any_call() {
        // The calls take 4 to 15 units each, so that the runs of levels 1 and 2 are as many as the calls.
        let page = |most| {
            let random = RefCell::new(fastrand::Rng::with_seed(5));
            let below = |most: u64| random.borrow_mut().u64(..most);
            let (mut chunks, mut runs, mut now) = (PageChunks::new(most), LaneRuns::new(0), 0);
            for _ in 0..50_000 {
                let from = now + 12 + below(2);
                now = from + 4 + below(12);
                let bar = Bar { from, to: now, site: below(9) as u32, amount: below(99), ..Bar::default() };
                runs.call(bar, &mut chunks);
            }
            runs.end(&mut chunks);
            chunks.finish()
        };
        let size = |page: &EndedChunks| page.chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
        let whole = page(u64::MAX);
        // A page of just the size that is left in the end holds every call.
        let small = page(size(&whole) + 4000);
        assert_eq!((whole.merged, small.merged, small.calls), (0, 0, 50_000));
        assert!(!small.levels.contains(&2) && small.levels.len() > 3, "{:?}", small.levels);
        assert!(size(&small) <= size(&whole) + 4000);
    }

    #[test]
    fn a_page_that_would_be_too_large_merges_the_shortest_calls_and_counts_them() {
        let random = RefCell::new(fastrand::Rng::with_seed(3));
        let below = |most: u64| random.borrow_mut().u64(..most);
        let (mut chunks, mut runs, mut now) = (PageChunks::new(60_000), LaneRuns::new(0), 0);
        for _ in 0..100_000 {
            let from = now + below(5);
            now = from + below(1 << below(12));
            let bar = Bar { from, to: now, site: below(9) as u32, amount: below(99), ..Bar::default() };
            runs.call(bar, &mut chunks);
        }
        runs.end(&mut chunks);
        let EndedChunks { chunks: ended, levels, calls, merged } = chunks.finish();
        let finest = levels[0];
        assert!(ended.iter().map(|chunk| chunk.bytes.len()).sum::<usize>() <= 60_000);
        assert_eq!(calls, 100_000);
        assert!(
            finest > 0 && merged > 10_000 && ended.iter().all(|chunk| chunk.key.level >= finest),
            "{finest}"
        );
        // The rest are there, one by one.
        let kept = ended.iter().filter(|chunk| chunk.key.kind == ChunkKind::Calls);
        assert_eq!(kept.map(|chunk| chunk.count as u64).sum::<u64>(), calls - merged);
    }
}
