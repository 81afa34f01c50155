//! Runs the tests: first each alone without a mutant, to record the places that it reaches, then with each mutant those
//! that reach its place.

use anyhow::{Context, Result, ensure};
use pugmark_builds::parallel::run_with_workers;
use pugmark_builds::test_binaries::TestBinary;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::process::{TestEnd, run};
use super::recorded;

/// The default of [`Tests::least`].
const DEFAULT_LEAST_SECONDS: u64 = 3;
/// The maximum time of tests with a mutant, as a multiple of the time without.
pub(crate) const SLOWDOWN_ALLOWED: u32 = 8;
/// The maximum real time, as a multiple of the allowed processor time, for other work and waiting.
pub(crate) const REAL_TIME_FACTOR: u32 = 10;
/// The maximum number of tests remembered for a function because they noticed a mutant in it.
const MAX_REMEMBERED_TESTS: usize = 4;

/// A test, with its results without a mutant.
pub(super) struct Test {
    /// The index of its binary in the list.
    pub(super) binary: usize,
    pub(super) name: String,
    /// Processor time of the test.
    pub(super) took: Duration,
    /// For each place a byte, which is not 0 if the test reaches the place.
    pub(super) reached: Vec<u8>,
}

/// The result for a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MutantFate {
    /// A test failed.
    Killed,
    /// The tests did not end, which is visible only as a timeout.
    TimedOut,
    /// All tests that reach the mutant passed: the binaries of these tests, and the number of tests not tried.
    Survived {
        binaries: Vec<String>,
        untried: usize,
    },
    NotReached,
    /// There was no time for the mutant.
    NoTimeLeft,
}

/// All tests, and the folder where they run.
pub(super) struct Tests {
    folder: PathBuf,
    binaries: Vec<TestBinary>,
    tests: Vec<Test>,
    jobs: usize,
    /// The minimum of the tests' processor time limit with a mutant, in seconds; [`SLOWDOWN_ALLOWED`] may give more.
    pub(super) least: u64,
    /// The time after which no further mutant is started.
    pub(super) end: Option<Instant>,
    /// The test time after which a surviving mutant is not tried with more tests.
    pub(super) enough: Duration,
    /// The tests that fail or take too long without a mutant, each with its end. They are not used. Empty if an earlier
    /// run has recorded the places that tests reach.
    pub(super) left_out: Vec<String>,
    scratch: AtomicUsize,
    /// For each function, the tests that noticed a mutant in it, the most recent first.
    noticed: Mutex<HashMap<String, Vec<usize>>>,
}

impl Tests {
    /// Runs each test without a mutant, in `folder`, unless the file `known` already has the places that it reaches.
    /// Tests that fail or take longer than `longest` are left out and named in [`Tests::left_out`].
    pub(super) fn record(
        folder: &Path,
        known: &Path,
        binaries: Vec<TestBinary>,
        places: usize,
        jobs: usize,
        longest: Duration,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut this = Self {
            folder: folder.into(),
            binaries,
            tests: vec![],
            jobs,
            least: DEFAULT_LEAST_SECONDS,
            end: None,
            enough: Duration::MAX,
            left_out: vec![],
            scratch: AtomicUsize::new(0),
            noticed: Mutex::default(),
        };
        let key = recorded::key(&this.binaries, longest)?;
        this.tests = match recorded::read(known, key, places) {
            Some(tests) => tests,
            None => {
                let (tests, left_out) = this.record_all(places, longest)?;
                this.left_out = left_out;
                tests
            }
        };
        recorded::write(known, key, &this.tests)?;
        let total: Duration = this.tests.iter().map(|test| test.took).sum();
        println!("{} tests, {:.0} s of the processor; the longest:", this.tests.len(), total.as_secs_f64());
        for test in this.tests.iter().rev().take(5) {
            let binary = &this.binaries[test.binary].name;
            println!("  {:.1} s: {binary} {}", test.took.as_secs_f64(), test.name);
        }
        Ok(this)
    }

    /// Returns the tests, and the names of those that are left out, each with its end.
    fn record_all(&self, places: usize, longest: Duration) -> Result<(Vec<Test>, Vec<String>)> {
        let names = self.binaries.iter().enumerate().map(|(index, binary)| Ok((index, names(binary)?)));
        let names: Vec<(usize, Vec<String>)> = names.collect::<Result<_>>()?;
        let names: Vec<_> = names
            .into_iter()
            .flat_map(|(index, names)| names.into_iter().map(move |name| (index, name)))
            .collect();
        println!("{} tests, each by itself, to see what it reaches", names.len());
        let work = |(binary, name): &(usize, String)| self.record_one(*binary, name, places, longest);
        let mut left_out = vec![];
        let tests = run_with_workers(&names, self.jobs, work, |(binary, name), result| {
            if let Ok(Err(end)) = result {
                left_out.push(format!("{} {name}: {end:?}", self.binaries[*binary].name));
            }
        });
        let mut kept = vec![];
        for test in tests {
            kept.extend(test?.ok());
        }
        kept.sort_by_key(|test| test.took);
        Ok((kept, left_out))
    }

    fn record_one(
        &self,
        binary: usize,
        name: &str,
        places: usize,
        longest: Duration,
    ) -> Result<Result<Test, TestEnd>> {
        let scratch = self.scratch()?;
        let file = scratch.join("reached");
        std::fs::write(&file, vec![0; places])?;
        let mut command = self.command(binary, &[name], &scratch)?;
        command.env("PUGMARK_MUTANTS_REACHED", &file);
        let (end, took) = run(&mut command, longest.as_secs().max(1), longest * 2)?;
        let reached = std::fs::read(&file)?;
        std::fs::remove_dir_all(&scratch)?;
        Ok(match end {
            TestEnd::Green => Ok(Test { binary, name: name.into(), took, reached }),
            end => Err(end),
        })
    }

    /// Makes a folder for one process.
    fn scratch(&self) -> Result<PathBuf> {
        let folder = self.folder.join(self.scratch.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    fn command(&self, binary: usize, tests: &[&str], scratch: &Path) -> Result<Command> {
        let log = File::create(scratch.join("log"))?;
        let binary = &self.binaries[binary];
        let mut command = Command::new(&binary.file);
        command.args(["--test-threads=1", "--exact"]).args(tests);
        command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder).env("TMPDIR", scratch);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Tries mutants. `which` gives the place, the mutant's number in the place (from 0), and the function. `hear` gets
    /// each mutant when it ends.
    pub(super) fn try_all<M: Sync>(
        &self,
        mutants: &[M],
        which: impl Fn(&M) -> (usize, usize, String) + Sync,
        mut hear: impl FnMut(&M, &MutantFate),
    ) -> Result<Vec<MutantFate>> {
        let work = |mutant: &M| {
            let (place, number, function) = which(mutant);
            self.fate(place, number, &function)
        };
        let fates = run_with_workers(mutants, self.jobs, work, |mutant, fate| {
            if let Ok(fate) = fate {
                hear(mutant, fate);
            }
        });
        fates.into_iter().collect()
    }

    fn fate(&self, place: usize, number: usize, function: &str) -> Result<MutantFate> {
        if self.end.is_some_and(|end| end < Instant::now()) {
            return Ok(MutantFate::NoTimeLeft);
        }
        let order = self.order(place, function);
        if order.is_empty() {
            return Ok(MutantFate::NotReached);
        }
        let (mut budget, mut spent) = (Duration::from_millis(20), Duration::ZERO);
        let mut rest = order.as_slice();
        while !rest.is_empty() && spent < self.enough {
            let mut sum = Duration::ZERO;
            let count = rest.iter().take_while(|test| {
                let goes_on = sum < budget;
                sum += self.tests[**test].took;
                goes_on
            });
            let (batch, later) = rest.split_at(count.count());
            rest = later;
            spent += batch.iter().map(|test| self.tests[*test].took).sum::<Duration>();
            budget = (budget * 3).min(self.enough);
            match self.batch(batch, place, number)? {
                (TestEnd::Green, _) => {}
                (TestEnd::TimedOut, _) => return Ok(MutantFate::TimedOut),
                (TestEnd::Red, by) => {
                    self.remember(function, by);
                    return Ok(MutantFate::Killed);
                }
            }
        }
        let mut binaries: Vec<_> =
            order.iter().map(|test| self.binaries[self.tests[*test].binary].name.clone()).collect();
        binaries.sort();
        binaries.dedup();
        Ok(MutantFate::Survived { binaries, untried: rest.len() })
    }

    /// Returns the tests that reach a place: those that noticed a mutant in its function first, then the quickest.
    fn order(&self, place: usize, function: &str) -> Vec<usize> {
        let noticed = self.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        let first = noticed.get(function).cloned().unwrap_or_default();
        let others = (0..self.tests.len()).filter(|test| !first.contains(test));
        let reaches = |test: &usize| self.tests[*test].reached[place] != 0;
        first.iter().copied().chain(others).filter(reaches).collect()
    }

    fn remember(&self, function: &str, test: Option<usize>) {
        let Some(test) = test else { return };
        let mut noticed = self.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        let tests = noticed.entry(function.into()).or_default();
        tests.retain(|other| *other != test);
        tests.insert(0, test);
        tests.truncate(MAX_REMEMBERED_TESTS);
    }

    /// Runs some tests with a mutant, each binary once, until one fails. Returns the end and the test that failed.
    fn batch(&self, batch: &[usize], place: usize, number: usize) -> Result<(TestEnd, Option<usize>)> {
        let mut binaries: Vec<_> = batch.iter().map(|test| self.tests[*test].binary).collect();
        binaries.sort_unstable();
        binaries.dedup();
        for binary in binaries {
            let tests: Vec<_> =
                batch.iter().copied().filter(|test| self.tests[*test].binary == binary).collect();
            let names: Vec<_> = tests.iter().map(|test| self.tests[*test].name.as_str()).collect();
            let sum: Duration = tests.iter().map(|test| self.tests[*test].took).sum();
            let seconds = self.least.max((sum * SLOWDOWN_ALLOWED).as_secs() + 1);
            let scratch = self.scratch()?;
            let mut command = self.command(binary, &names, &scratch)?;
            command.env("PUGMARK_MUTANT", format!("{place}:{}", number + 1));
            let (end, _) = run(&mut command, seconds, Duration::from_secs(seconds) * REAL_TIME_FACTOR)?;
            let red = || -> Option<usize> {
                let log = std::fs::read(scratch.join("log")).ok()?;
                let log = String::from_utf8_lossy(&log);
                let name = first_red(&log)?;
                tests.iter().copied().find(|test| self.tests[*test].name == name)
            };
            let by = if end == TestEnd::Red { red() } else { None };
            std::fs::remove_dir_all(&scratch)
                .with_context(|| format!("cannot remove {}, which a test left", scratch.display()))?;
            if end != TestEnd::Green {
                return Ok((end, by));
            }
        }
        Ok((TestEnd::Green, None))
    }
}

/// Returns the first failed test in a binary's output, or the one that was running when the binary ended.
pub(crate) fn first_red(log: &str) -> Option<&str> {
    let mut tests = log.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    tests.find(|(_, end)| !end.starts_with("ok") && !end.starts_with("ignored")).map(|(name, _)| name)
}

/// Returns the names of a binary's tests.
fn names(binary: &TestBinary) -> Result<Vec<String>> {
    let output = Command::new(&binary.file).args(["--list", "--format", "terse"]).output()?;
    ensure!(output.status.success(), "{} does not list its tests", binary.name);
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}
