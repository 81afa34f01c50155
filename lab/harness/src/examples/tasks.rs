//! Judges the example `async`: instructions and calls by task.

use anyhow::{Result, ensure};
use iced_x86::{FlowControl, Instruction, Mnemonic};
use std::collections::BTreeMap;

use super::Shown;
use super::path::{ExampleProgram, is_interrupted};

/// The executor's function that polls a task.
const POLL: &str = "async::executor::poll";
const TASKS: [&str; 3] = ["produce", "consume", "sort"];
/// The rows of what is no task's.
const EXECUTOR: &str = "executor ?";
const INTERRUPTS: &str = "interrupts ?";

/// The count of numbers that two tasks pass on, and of those that one sorts.
const NUMBERS: u64 = 12;
const SORTED: u64 = 120;

/// Number of polls, instructions and calls.
type Executed = [u64; 3];

impl Shown<'_> {
    /// Checks that instructions and calls were attributed to the tasks that have executed them.
    pub(super) fn tasks(&self) -> Result<String> {
        let path = self.outcome.truth.session(1);
        let count = self.counts("instructions=", path.iter())?;
        let served = self.pmis()?;
        let mut by_task =
            ByTask { program: &self.program, rows: BTreeMap::new(), now: None, interrupted: vec![] };
        self.program.steps(path, |instruction, to| {
            by_task.step(instruction, to);
            Ok(())
        })?;
        by_task.row()[1] += 1;
        let rows = by_task.rows;
        let executed: Vec<_> = rows.iter().map(|(name, row)| printed_as(name, *row)).collect();
        let mut printed: Vec<_> = self.lines().filter(|line| line.contains(" polls=")).collect();
        printed.sort_unstable();
        ensure!(printed == executed, "printed {printed:#?}, executed {executed:#?}");
        let polls = TASKS.map(|name| rows.get(&task(name)).map_or(0, |row| row[0]));
        // Each pass of the sort is a poll.
        ensure!(polls[0] > 1 && polls[1] > 1 && polls[2] == SORTED, "polls: {polls:?}");
        ensure!(rows.get(INTERRUPTS).is_some_and(|row| row[1] > 100), "hardly anything was interrupted");
        let results = format!("results {:?}", [sum(), smallest()]);
        ensure!(self.lines().any(|line| line == results), "the tasks have not computed {results}");
        Ok(format!(
            "{count} instructions with {served} PMIs are the truth's, and so is what is each task's: {executed:#?}"
        ))
    }
}

/// Returns the name of a task's row: its function's.
fn task(name: &str) -> String {
    format!("task async::tasks::{name}::{{{{closure}}}}")
}

/// Returns a row as it is printed.
fn printed_as(name: &str, [polls, instructions, calls]: Executed) -> String {
    format!("{name} polls={polls} instructions={instructions} calls={calls}")
}

/// A walk over the path that knows which task runs.
struct ByTask<'a> {
    program: &'a ExampleProgram,
    rows: BTreeMap<String, Executed>,
    now: Option<String>,
    /// The interrupts that have not returned; each with the interrupted instruction, if where it led to is not known.
    interrupted: Vec<Option<Instruction>>,
}

impl ByTask<'_> {
    fn row(&mut self) -> &mut Executed {
        let name = match &self.now {
            _ if !self.interrupted.is_empty() => INTERRUPTS,
            Some(task) => task,
            None => EXECUTOR,
        };
        self.rows.entry(name.into()).or_default()
    }

    fn step(&mut self, instruction: &Instruction, to: u64) {
        self.row()[1] += 1;
        let is_interrupted = is_interrupted(self.program, instruction, to);
        if instruction.mnemonic() == Mnemonic::Iretq {
            // The next interrupt comes before the instruction that the last one has interrupted.
            if is_interrupted {
                return;
            }
            let before = self.interrupted.pop().flatten();
            before.into_iter().for_each(|before| self.transfer(&before, to));
        } else if is_interrupted {
            let leads_to = instruction.near_branch_target();
            if leads_to != 0 {
                self.transfer(instruction, leads_to);
            }
            self.interrupted.push((leads_to == 0).then_some(*instruction));
        } else {
            self.transfer(instruction, to);
        }
    }

    fn transfer(&mut self, instruction: &Instruction, to: u64) {
        let is_poll = |address| self.program.name(address) == POLL;
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall if to != instruction.next_ip() => {
                if is_poll(instruction.ip()) {
                    self.now = Some(format!("task {}", self.program.name(to)));
                    self.row()[0] += 1;
                } else {
                    self.row()[2] += 1;
                }
            }
            FlowControl::Return if is_poll(to) => self.now = None,
            _ => {}
        }
    }
}

/// The tasks' `mix`: a step of a linear congruential generator.
fn mix(number: u64) -> u64 {
    number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 33
}

/// Returns the result of the task that takes numbers.
fn sum() -> u64 {
    let length = |number: u64| {
        let next = |number: &u64| match number {
            1 => None,
            number if number % 2 == 0 => Some(number / 2),
            number => Some(3 * number + 1),
        };
        std::iter::successors(Some(number), next).count() as u64 - 1
    };
    (0..NUMBERS).map(|number| length(mix(number) % 1000 + 1)).sum()
}

/// Returns the result of the task that sorts.
fn smallest() -> u64 {
    (0..SORTED).map(mix).min().unwrap_or_default()
}
