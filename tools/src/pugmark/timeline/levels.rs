//! The calls of a run at every zoom: each call once, by how long it took, and for each zoom the runs of neighbours
//! that are too short to be seen there.
//!
//! Level `n` is for a picture whose pixels are at least `4^n` units of time wide. It shows each call that takes as long
//! as that, and in place of the shorter ones runs: neighbours of one depth that together take at most `4^n`.

use super::chunks::{ChunkKey, ChunkKind, PageChunks};

/// The number of levels: the longest of them is years in nanoseconds.
pub(super) const LEVELS: u32 = 28;

/// A call, or a run of calls that are drawn as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) depth: usize,
    /// The number of the function's name and of the place of its call; in a run, those of the longest call.
    pub(super) site: u32,
    /// The number of instructions executed in it; in a run, the number of calls.
    pub(super) amount: u64,
    /// The time that its callees took; in a run, the time of the longest call.
    pub(super) inner: u64,
}

/// Returns the level of the shortest picture in which a call is drawn by itself.
pub(super) const fn level_of(time: u64) -> u32 {
    let level = (63 - (time | 1).leading_zeros()) / 2;
    if level < LEVELS { level } else { LEVELS - 1 }
}

/// The runs of a track that may go on, by depth and level.
#[derive(Default)]
pub(super) struct LaneRuns {
    lane: usize,
    open: Vec<Vec<Option<Bar>>>,
}

impl LaneRuns {
    pub(super) fn new(lane: usize) -> Self {
        Self { lane, open: vec![] }
    }

    /// Adds a call that has returned.
    pub(super) fn call(&mut self, bar: Bar, chunks: &mut PageChunks) {
        let level = level_of(bar.to - bar.from);
        // No run goes on past a call that is drawn beside it.
        self.close(bar.depth, level, chunks);
        chunks.push(self.key(&bar, level, ChunkKind::Calls), bar);
        self.merge(Bar { amount: 1, inner: bar.to - bar.from, ..bar }, level + 1, chunks);
    }

    /// Ends all runs.
    pub(super) fn end(&mut self, chunks: &mut PageChunks) {
        for depth in 0..self.open.len() {
            self.close(depth, LEVELS - 1, chunks);
        }
    }

    /// Returns the number of depths that have had a call.
    pub(super) fn rows(&self) -> usize {
        self.open.len()
    }

    fn key(&self, bar: &Bar, level: u32, kind: ChunkKind) -> ChunkKey {
        ChunkKey::new(self.lane, bar.depth, level, kind)
    }

    /// Ends the runs of a depth up to a level.
    fn close(&mut self, depth: usize, level: u32, chunks: &mut PageChunks) {
        for level in 1..=level {
            let run = self.open.get_mut(depth).and_then(|levels| levels.get_mut(level as usize)?.take());
            if let Some(run) = run {
                chunks.push(self.key(&run, level, ChunkKind::Runs), run);
                self.merge(run, level + 1, chunks);
            }
        }
    }

    /// Adds a call or a run that is too short for a level to that level's run, or begins another one.
    fn merge(&mut self, mut bar: Bar, level: u32, chunks: &mut PageChunks) {
        if self.open.len() <= bar.depth {
            self.open.resize(bar.depth + 1, vec![]);
        }
        for level in level..LEVELS {
            let levels = &mut self.open[bar.depth];
            if levels.len() <= level as usize {
                levels.resize(level as usize + 1, None);
            }
            match &mut levels[level as usize] {
                Some(run) if bar.to.saturating_sub(run.from) <= 1 << (2 * level) => return run.take_in(&bar),
                run => match run.replace(bar) {
                    None => return,
                    Some(ended) => {
                        chunks.push(self.key(&ended, level, ChunkKind::Runs), ended);
                        bar = ended;
                    }
                },
            }
        }
    }
}

impl Bar {
    /// Adds the next one to a run.
    const fn take_in(&mut self, next: &Self) {
        self.to = next.to;
        self.amount += next.amount;
        if next.inner > self.inner {
            (self.site, self.inner) = (next.site, next.inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn call(from: u64, to: u64, site: u32) -> Bar {
        Bar { from, to, site, amount: 7, ..Bar::default() }
    }

    /// Returns the bars that a picture of a level is made of, in order: begin, end, function, and number of calls.
    fn shown(calls: &[Bar], level: u32) -> Vec<(u64, u64, u32, u64)> {
        let (mut chunks, mut runs) = (PageChunks::new(u64::MAX), LaneRuns::new(0));
        calls.iter().for_each(|bar| runs.call(*bar, &mut chunks));
        runs.end(&mut chunks);
        let bars = chunks.open_bars().filter_map(|(key, bar)| match key.kind {
            ChunkKind::Calls if key.level >= level => Some((bar.from, bar.to, bar.site, 1)),
            ChunkKind::Runs if key.level == level => Some((bar.from, bar.to, bar.site, bar.amount)),
            _ => None,
        });
        let mut bars: Vec<_> = bars.collect();
        bars.sort_unstable();
        bars
    }

    #[test]
    fn neighbours_too_short_for_a_level_are_one_run_named_by_the_longest() {
        let calls =
            [call(0, 2, 1), call(2, 5, 2), call(6, 7, 1), call(20, 22, 3), call(24, 44, 4), call(45, 46, 5)];
        let exactly: Vec<_> = calls.iter().map(|bar| (bar.from, bar.to, bar.site, 1)).collect();
        assert_eq!(shown(&calls, 0), exactly);
        // A run takes at most 4 units at level 1; the call of 20 units ends the run before it at level 2.
        let rest = [(20, 22, 3, 1), (24, 44, 4, 1), (45, 46, 5, 1)];
        assert_eq!(shown(&calls, 1), [&[(0, 2, 1, 1), (2, 5, 2, 1), (6, 7, 1, 1)], &rest[..]].concat());
        assert_eq!(shown(&calls, 2), [&[(0, 7, 2, 3)], &rest[..]].concat());
        assert_eq!(shown(&calls, 3), [(0, 46, 4, 6)]);
    }

    #[test]
    fn every_level_has_every_call_and_no_run_is_longer_than_its_level() {
        let random = RefCell::new(fastrand::Rng::with_seed(7));
        let below = |most: u64| random.borrow_mut().u64(..most);
        let mut now = 0;
        let calls: Vec<Bar> = (0..5000)
            .map(|_| {
                now += below(1 << below(14));
                let from = now;
                now += below(1 << below(14));
                call(from, now, below(5) as u32)
            })
            .collect();
        for level in 0..LEVELS {
            let bars = shown(&calls, level);
            assert_eq!(bars.iter().map(|(.., calls)| calls).sum::<u64>(), 5000, "level {level}");
            let is_short =
                |(from, to, _, calls): &(u64, u64, u32, u64)| *calls == 1 || to - from <= 1 << (2 * level);
            assert!(bars.iter().all(is_short), "level {level}");
            // Two runs in a row are longer than the level together: a picture has few of them.
            let most = now / (1 << (2 * level)).max(1) * 2 + 2;
            let runs = bars.iter().filter(|(from, to, ..)| to - from < 1 << (2 * level)).count() as u64;
            assert!(level == 0 || runs <= most + calls.len() as u64 / 2, "level {level}: {runs}");
        }
    }

    #[test]
    fn a_time_has_the_level_of_which_it_is_at_least_a_pixel() {
        let rows = [(0, 0), (1, 0), (3, 0), (4, 1), (15, 1), (16, 2), (1 << 40, 20), (u64::MAX, LEVELS - 1)];
        for (time, level) in rows {
            assert_eq!(level_of(time), level, "{time}");
        }
    }
}
