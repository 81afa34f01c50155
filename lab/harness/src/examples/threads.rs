//! Judges the example `threads`: one thread of several is traced.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

use super::Shown;

/// The number of the traced thread, which is its trace session, and those of the others.
const TRACED: u16 = 2;
const OTHERS: [u16; 3] = [1, 3, 4];

/// The level of programs.
const USER: u8 = 3;

/// The kernel's function that is called when a turn ends.
const ENDS: &str = "threads::ends";

/// The least number of turns: the traced thread gives up seven, and ends.
const TURNS: usize = 8;

impl Shown<'_> {
    /// Checks that all instructions of one thread were decoded, and how often it has called which function.
    pub(super) fn threads(&self) -> Result<String> {
        let path = self.outcome.truth.session(TRACED);
        for other in OTHERS {
            ensure!(self.outcome.truth.session(other).is_empty(), "thread {other} was traced, too");
        }
        let count = self.counts("instructions=", path.iter())?;
        let user =
            self.counts("user instructions=", path.iter().filter(|record| record.flags.cpl() == USER))?;
        let mut calls: BTreeMap<String, u64> = BTreeMap::new();
        for target in self.program.call_instructions(path)? {
            *calls.entry(self.program.name(target)).or_default() += 1;
        }
        let mut printed: BTreeMap<String, u64> = BTreeMap::new();
        for line in self.lines().filter_map(|line| line.strip_prefix("calls ")) {
            let (calls, name) = line.split_once(' ').context("no name")?;
            *printed.entry(name.into()).or_default() += calls.parse::<u64>()?;
        }
        ensure!(printed == calls, "printed {printed:#?}, executed {calls:#?}");
        let of_both = ["program::mix", ENDS].map(|name| calls.get(name).copied().unwrap_or_default());
        ensure!(of_both[0] == NUMBERS && of_both[1] >= TURNS as u64, "calls of mix and of ends: {of_both:?}");
        let served = self.pmis()?;
        let results: Vec<_> = self.lines().filter(|line| line.starts_with("result ")).collect();
        let written = [(1, counted()), (2, smallest(7)), (3, smallest(8)), (4, smallest(9))];
        let written = written.map(|(number, result)| format!("result {number} {result}"));
        ensure!(results == written, "the threads have computed {results:?} in place of {written:?}");
        Ok(format!(
            "{count} instructions of one thread of four, {user} of them the program's, are the truth's, and so are its \
             calls of {} functions in {} turns with {served} PMIs",
            calls.len(),
            of_both[1]
        ))
    }

    /// Checks that what was decoded of the program is all that the thread has executed of it.
    pub(super) fn whole_thread(&self) -> Result<String> {
        let of_program = |session| {
            let path = self.outcome.truth.session(session).iter();
            path.filter(|record| record.flags.cpl() == USER).collect::<Vec<_>>()
        };
        let own = of_program(TRACED);
        let cr3 = own.first().context("the thread has executed nothing")?.cr3;
        ensure!(own.iter().all(|record| record.cr3 == cr3), "the thread has executed two programs");
        let user = self.counts("user instructions=", own.into_iter())?;
        let mut others = 0;
        for (number, is_same) in OTHERS.into_iter().zip([true, true, false]) {
            let path = of_program(number);
            ensure!(!path.is_empty(), "thread {number} has executed nothing");
            ensure!(
                path.iter().all(|record| (record.cr3 == cr3) == is_same),
                "thread {number}: another program"
            );
            others += path.len();
        }
        Ok(format!(
            "{user} instructions of the program are all of the thread's, beside {others} of three others"
        ))
    }
}

/// The count of numbers that a thread sorts.
const NUMBERS: u64 = 100;

/// The program's `mix`: a step of a linear congruential generator.
fn mix(number: u64) -> u64 {
    number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// Returns the result of a thread that sorts.
fn smallest(seed: u64) -> u64 {
    let numbers = (0..NUMBERS).scan(seed, |number, _| {
        *number = mix(*number);
        Some(*number)
    });
    numbers.min().unwrap_or_default()
}

/// Returns the result of the thread that counts.
fn counted() -> u64 {
    let mut number = 0;
    (0..2000).fold(0, |count, _| {
        number = mix(number);
        count + u64::from(number % 3 == 0)
    })
}
