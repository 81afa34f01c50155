//! The code that each process had mapped, and the thread that each processor ran, at each time.
//!
//! A [`ProcessTimeline`] is made of what a source says of the system. It knows nothing of traces.
//!
//! # When code is there
//!
//! A record of a new mapping may come a little after the first instruction there was executed, because the time in
//! a trace is an estimate. So a mapping where there was nothing before counts as if it had always been there. Only
//! what takes the place of other code makes a new [space](SpaceId), which a process has from that time on: another
//! mapping at the same addresses, or another program.
//!
//! A new process shares its parent's space until it maps something itself. Nothing is copied for it.
//!
//! The kernel's code is the same for all processes, but changes in place: each change makes another [`KernelState`].

mod kernel;
mod spaces;
#[cfg(test)]
mod tests;

pub use kernel::{KernelBytes, KernelState, KernelText};
pub use spaces::{CodePart, SpaceId};

use crate::source::{SystemChange, SystemRecord, SystemTask};
use rustc_hash::FxHashMap;
use spaces::{Mapped, Spaces};
use std::sync::Arc;

/// Values that change, each with the time from which on it holds.
#[derive(Clone, Debug)]
struct Changes<T>(Vec<(u64, T)>);

impl<T> Default for Changes<T> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<T> Changes<T> {
    fn set(&mut self, time: u64, value: T) {
        self.0.push((time, value));
    }

    /// Returns the value at a time.
    fn at(&self, time: u64) -> Option<&T> {
        let after = self.0.partition_point(|(from, _)| *from <= time);
        self.0.get(after.checked_sub(1)?).map(|(_, value)| value)
    }
}

/// The threads of each processor and the mappings of each process, with their times.
#[derive(Debug, Default)]
pub struct ProcessTimeline {
    spaces: Spaces,
    /// The space of each process.
    processes: FxHashMap<i32, Changes<SpaceId>>,
    /// The present mappings of each process, while the timeline is made.
    mapped: FxHashMap<i32, Mapped>,
    kernel: KernelText,
    /// The process of each thread.
    threads: FxHashMap<i32, Changes<i32>>,
    names: FxHashMap<i32, Changes<Arc<str>>>,
    /// The thread that each processor ran.
    runs: FxHashMap<u32, Changes<SystemTask>>,
    /// When the source lost records, and how many.
    losses: Vec<(u64, u64)>,
    /// When the source lost some of a trace, and of which processor.
    trace_losses: Vec<(u64, Option<u32>)>,
}

/// From a time on, a thread runs, with the code of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTurn {
    /// In the clock of the source.
    pub time: u64,
    /// The thread, if that is known.
    pub task: Option<SystemTask>,
    /// The mappings of its process, if they are known.
    pub space: Option<SpaceId>,
    /// The kernel's code.
    pub kernel: KernelState,
}

/// The process that perf's records of the kernel's code name. The code is in no file, or in modules before linking.
const KERNEL: i32 = -1;

impl ProcessTimeline {
    /// Makes a timeline of what a system did.
    #[must_use]
    pub fn of(records: &[SystemRecord]) -> Self {
        let mut order: Vec<&SystemRecord> = records.iter().collect();
        // Each processor has recorded for itself.
        order.sort_by_key(|record| record.time);
        let mut timeline = Self::default();
        for record in order {
            timeline.record(record);
        }
        timeline.mapped = FxHashMap::default();
        timeline.kernel.finish();
        timeline
    }

    fn record(&mut self, SystemRecord { time, cpu, change }: &SystemRecord) {
        match change {
            SystemChange::Map(mapping) => {
                let mapped = self.mapped.entry(mapping.process).or_insert_with(|| self.spaces.begin());
                let changes = self.processes.entry(mapping.process).or_default();
                if changes.0.is_empty() {
                    changes.set(*time, mapped.space());
                }
                match self.spaces.map(mapped, mapping) {
                    None => {}
                    Some((space, true)) => changes.set(*time, space),
                    Some((space, false)) => {
                        changes.0.iter_mut().last().into_iter().for_each(|last| last.1 = space)
                    }
                }
            }
            SystemChange::Name { task, name, exec } => {
                self.threads.entry(task.tid).or_default().set(*time, task.pid);
                self.names.entry(task.tid).or_default().set(*time, name.clone());
                if *exec {
                    let mapped = self.spaces.begin();
                    self.processes.entry(task.pid).or_default().set(*time, mapped.space());
                    self.mapped.insert(task.pid, mapped);
                }
            }
            SystemChange::Fork { task, parent, has_mappings } => {
                self.threads.entry(task.tid).or_default().set(*time, task.pid);
                if let Some(name) = self.names.get(parent).and_then(|names| names.at(*time)).cloned() {
                    self.names.entry(task.tid).or_default().set(*time, name);
                }
                if task.pid != *parent
                    && *has_mappings
                    && let Some(mapped) = self.mapped.get(parent).map(|mapped| self.spaces.share(mapped))
                {
                    self.processes.entry(task.pid).or_default().set(*time, mapped.space());
                    self.mapped.insert(task.pid, mapped);
                }
            }
            SystemChange::Switch { from, to } => {
                let runs = cpu.map(|cpu| self.runs.entry(cpu).or_default());
                if let (Some(runs), Some(from)) = (runs, from)
                    && runs.0.is_empty()
                {
                    runs.set(0, *from);
                }
                if let (Some(cpu), Some(to)) = (cpu, to) {
                    self.runs.entry(*cpu).or_default().set(*time, *to);
                }
            }
            SystemChange::Poke(poke) => self.kernel.add(*time, poke),
            SystemChange::RecordsLost(count) => self.losses.push((*time, *count)),
            SystemChange::TraceLost => self.trace_losses.push((*time, *cpu)),
        }
    }

    /// Returns the processes that have mapped code.
    pub fn processes(&self) -> impl Iterator<Item = i32> {
        self.processes.keys().copied().filter(|process| *process != KERNEL)
    }

    /// Returns when records were lost, and how many.
    #[must_use]
    pub fn losses(&self) -> &[(u64, u64)] {
        &self.losses
    }

    /// Returns when some of a trace was lost, and of which processor.
    #[must_use]
    pub fn trace_losses(&self) -> &[(u64, Option<u32>)] {
        &self.trace_losses
    }

    /// Returns the name of a thread when its turn begins: of the program that it executes with this code.
    #[must_use]
    pub fn name(&self, turn: ThreadTurn) -> Option<&Arc<str>> {
        let ThreadTurn { time, task, space, .. } = turn;
        let task = task?;
        let spaces = self.processes.get(&task.pid).into_iter().flat_map(|spaces| &spaces.0);
        let begun = spaces.filter(|(_, own)| Some(*own) == space).map(|(from, _)| *from).min();
        let names = self.names.get(&task.tid)?;
        names.at(time.max(begun.unwrap_or(0))).or_else(|| names.0.first().map(|(_, name)| name))
    }

    /// Returns the code in a space: parts of files, in the order of their addresses, and none overlaps another.
    #[must_use]
    pub fn code(&self, space: SpaceId) -> Vec<CodePart> {
        self.spaces.code(space)
    }

    /// Returns the changes of the kernel's code.
    #[must_use]
    pub const fn kernel(&self) -> &KernelText {
        &self.kernel
    }

    /// Returns the threads that ran while the trace of a processor was taken.
    #[must_use]
    pub fn turns_of_cpu(&self, cpu: u32) -> Vec<ThreadTurn> {
        let mut turns = vec![];
        match self.runs.get(&cpu) {
            Some(Changes(runs)) => {
                let ends = runs.iter().skip(1).map(|(time, _)| *time).chain([u64::MAX]);
                for ((from, task), to) in runs.iter().zip(ends) {
                    self.add_turns(&mut turns, *task, *from, to);
                }
            }
            // Without switches it can only be clear if there is one process.
            None => {
                let mut processes = self.processes();
                if let (Some(pid), None) = (processes.next(), processes.next()) {
                    self.add_turns(&mut turns, SystemTask { pid, tid: pid }, 0, u64::MAX);
                }
            }
        }
        self.begin(turns)
    }

    /// Returns the spaces that a thread had while its trace was taken.
    #[must_use]
    pub fn turns_of_thread(&self, tid: i32) -> Vec<ThreadTurn> {
        let mut turns = vec![];
        self.add_turns(&mut turns, SystemTask { pid: KERNEL, tid }, 0, u64::MAX);
        self.begin(turns)
    }

    /// Returns the same, from the very beginning: what came first was so before.
    fn begin(&self, mut turns: Vec<ThreadTurn>) -> Vec<ThreadTurn> {
        match turns.first_mut() {
            Some(first) => first.time = 0,
            None => self.add_kernel(&mut turns, ThreadTurn::default(), u64::MAX),
        }
        turns
    }

    /// Adds the turns of a thread from one time to another.
    fn add_turns(&self, turns: &mut Vec<ThreadTurn>, task: SystemTask, from: u64, to: u64) {
        let process_at = |time| {
            self.threads.get(&task.tid).and_then(|threads| {
                threads.at(time).or_else(|| threads.0.first().map(|(_, pid)| pid)).copied()
            })
        };
        let pid = if task.pid == KERNEL { process_at(from).unwrap_or(task.tid) } else { task.pid };
        let task = SystemTask { pid, ..task };
        let spaces = self.processes.get(&pid);
        let first =
            spaces.and_then(|spaces| spaces.at(from).or_else(|| spaces.0.first().map(|(_, space)| space)));
        let own = spaces.into_iter().flat_map(|spaces| &spaces.0);
        let own = own.filter(|(time, _)| (from + 1..to).contains(time));
        let all: Vec<_> = std::iter::once((from, first.copied()))
            .chain(own.map(|(time, space)| (*time, Some(*space))))
            .collect();
        let ends = all.iter().skip(1).map(|(time, _)| *time).chain([to]);
        for ((time, space), end) in all.iter().zip(ends) {
            let turn = ThreadTurn { time: *time, task: Some(task), space: *space, ..ThreadTurn::default() };
            self.add_kernel(turns, turn, end);
        }
    }

    /// Adds a turn, and another one for each change of the kernel's code up to a time.
    fn add_kernel(&self, turns: &mut Vec<ThreadTurn>, turn: ThreadTurn, to: u64) {
        let from = turn.time;
        for time in std::iter::once(from).chain(self.kernel.times(from, to)) {
            push(turns, ThreadTurn { time, kernel: self.kernel.at(time), ..turn });
        }
    }
}

/// Adds a turn, if it is another one.
fn push(turns: &mut Vec<ThreadTurn>, turn: ThreadTurn) {
    match turns.last_mut() {
        Some(last) if (last.task, last.space, last.kernel) == (turn.task, turn.space, turn.kernel) => {}
        // Another one takes its place at once.
        Some(last) if last.time == turn.time => *last = turn,
        _ => turns.push(turn),
    }
}
