//! The threads that GDB sees, each at a position of its own in its history.

use super::history::{History, Searched};
use crate::pugmark::visitors::Unit;
use crate::session::BlockCaches;
use crate::symbols::TracedSymbols;
use rustc_hash::FxHashSet;
use std::rc::Rc;

/// A thread.
#[derive(Debug)]
pub(super) struct ReplayThread {
    /// The number of its history, and of its lane there.
    pub(super) history: usize,
    pub(super) lane: usize,
    /// The number of instructions before its position.
    pub(super) at: u64,
    /// Its name.
    pub(super) title: String,
    pub(super) names: Rc<TracedSymbols>,
    /// The words for its end, if a signal ended it.
    pub(super) ending: Option<String>,
}

/// A way to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Motion {
    Step,
    Continue,
    StepBack,
    ContinueBack,
}

/// The cause of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Stepped,
    Breakpoint,
    Begin,
    End,
}

/// All threads with what they have executed.
pub(super) struct Threads<'a, 'm> {
    pub(super) histories: Vec<History<'a>>,
    pub(super) caches: BlockCaches<'m>,
    pub(super) threads: Vec<ReplayThread>,
    /// The thread that the user has selected, and the one that goes.
    pub(super) selected: usize,
    pub(super) current: usize,
    pub(super) breakpoints: FxHashSet<u64>,
    pub(super) unit: Unit,
    /// Lines for the user that were not shown yet.
    pub(super) notes: Vec<String>,
}

/// The most gaps that are named when they are passed over.
const NAMED_GAPS: usize = 3;

impl Threads<'_, '_> {
    /// Returns the address at the position of a thread, if it is known.
    pub(super) fn ip(&mut self, thread: usize) -> Option<u64> {
        let ReplayThread { history, lane, at, .. } = *self.threads.get(thread)?;
        self.histories.get_mut(history)?.ip(&mut self.caches, lane, at)
    }

    /// Reads code at the position of a thread, and returns the number of bytes.
    pub(super) fn read(&mut self, thread: usize, address: u64, bytes: &mut [u8]) -> usize {
        let Some(&ReplayThread { history, lane, at, .. }) = self.threads.get(thread) else { return 0 };
        let history = self.histories.get_mut(history);
        history.map_or(0, |history| history.read(&mut self.caches, (lane, at), address, bytes))
    }

    /// Moves the current thread. Returns `None` if the search for a breakpoint was interrupted: the thread is where the
    /// search was.
    pub(super) fn go(&mut self, motion: Motion, is_interrupted: &dyn Fn() -> bool) -> Option<Stop> {
        let Some(&ReplayThread { history, lane, at, .. }) = self.threads.get(self.current) else {
            return Some(Stop::End);
        };
        let Self { caches, breakpoints, .. } = self;
        let Some(history) = self.histories.get_mut(history) else { return Some(Stop::End) };
        let known = history.lanes.get(lane).cloned().unwrap_or_default();
        let last = known.last();
        let (to, stop) = match motion {
            Motion::Step if at >= last => (at, Some(Stop::End)),
            Motion::StepBack | Motion::ContinueBack if at == 0 => (0, Some(Stop::Begin)),
            Motion::Step => (at + 1, Some(Stop::Stepped)),
            Motion::StepBack => (at - 1, Some(Stop::Stepped)),
            Motion::Continue => match history.first(caches, (lane, at + 1), breakpoints, is_interrupted) {
                Searched::Found(to) => (to, Some(Stop::Breakpoint)),
                Searched::Interrupted(to) => (to.min(last), None),
                Searched::Nothing => {
                    let is_at_end = at < last && known.end.is_some_and(|end| breakpoints.contains(&end));
                    (last, Some(if is_at_end { Stop::Breakpoint } else { Stop::End }))
                }
            },
            Motion::ContinueBack => match history.last(caches, (lane, at), breakpoints, is_interrupted) {
                Searched::Found(to) => (to, Some(Stop::Breakpoint)),
                Searched::Interrupted(to) => (to, None),
                Searched::Nothing => (0, Some(Stop::Begin)),
            },
        };
        self.go_to(to);
        stop
    }

    /// Moves the current thread to a position, and notes the gaps on the way.
    pub(super) fn go_to(&mut self, to: u64) {
        let Some(thread) = self.threads.get_mut(self.current) else { return };
        let Some(history) = self.histories.get(thread.history) else { return };
        let from = std::mem::replace(&mut thread.at, to);
        let way = from.min(to)..from.max(to);
        let passed = history
            .gaps
            .iter()
            .filter(|gap| gap.lane == thread.lane && way.contains(&gap.before.wrapping_sub(1)));
        let mut count = 0;
        for gap in passed {
            count += 1;
            if count <= NAMED_GAPS {
                self.notes.push(format!("gap before instruction {}: {}\n", gap.before, gap.cause));
            }
        }
        if count > NAMED_GAPS {
            self.notes.push(format!("and {} more gaps\n", count - NAMED_GAPS));
        }
    }

    /// Describes the position of the current thread.
    pub(super) fn place(&mut self) -> String {
        let ip = self.ip(self.current);
        let Some(thread) = self.threads.get(self.current) else { return String::new() };
        let ReplayThread { history, lane, at, title, names, ending } = thread;
        let Some(history) = self.histories.get_mut(*history) else { return String::new() };
        let known = history.lanes.get(*lane).cloned().unwrap_or_default();
        let mut text = format!("thread {}: {title}\n", self.current + 1);
        text += &format!("instruction {at} of {}", known.count);
        if *at == known.count {
            text += &format!(": the end, before an instruction that was not executed{}", words(ending));
        } else if *at == known.last() {
            text += &format!(": the last one{}", words(ending));
        }
        if self.unit != Unit::Instructions
            && let Some(time) = history.time(&mut self.caches, *lane, *at)
        {
            text += &format!("\ntime {time} {}", self.unit.name());
        }
        if let Some(ip) = ip {
            let line = names.line(ip).map(|line| format!(" ({})", line.short())).unwrap_or_default();
            text += &format!("\nat {ip:#x} {}{line}", names.place(ip));
        }
        let mut gaps = history.gaps.iter().filter(|gap| gap.lane == *lane).peekable();
        if gaps.peek().is_some() {
            let before = gaps.clone().rfind(|gap| gap.before <= *at);
            let after = gaps.find(|gap| gap.before > *at);
            for (gap, side) in [(before, "last gap before"), (after, "next gap after")] {
                if let Some(gap) = gap {
                    text += &format!("\n{side} this: before instruction {}: {}", gap.before, gap.cause);
                }
            }
        }
        if history.gap_count > history.gaps.len() {
            text +=
                &format!("\nonly the first {} of {} gaps are known", history.gaps.len(), history.gap_count);
        }
        text + "\n"
    }
}

/// Returns the rest of a sentence about an end.
fn words(ending: &Option<String>) -> &str {
    ending.as_deref().unwrap_or_default()
}
