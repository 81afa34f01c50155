//! The outcome of each job, and the summary of all jobs.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::job::TestJob;

/// The beginning of the line that a test prints if it checks less because a program is missing.
const SKIPPED: &str = "skipped: ";

/// The result of a job.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JobOutcome {
    pub(super) passed: bool,
    /// The numbers of tests that passed and failed.
    pub(super) tests: [u64; 2],
    /// For each test that was skipped, its first reason.
    pub(super) skipped: Vec<String>,
    took: Duration,
    processor: Duration,
}

impl JobOutcome {
    /// Reads the output of one or more test binaries.
    pub(super) fn read(passed: bool, took: Duration, processor: Duration, text: &str) -> Self {
        let mut outcome = Self { passed, took, processor, ..Self::default() };
        let mut named = true;
        for line in text.lines() {
            if line.starts_with("---- ") {
                named = false;
            } else if let Some(reason) = line.strip_prefix(SKIPPED).filter(|_| !named) {
                named = true;
                outcome.skipped.push(reason.into());
            } else if let Some(result) = line.strip_prefix("test result: ") {
                named = true;
                for (count, word) in outcome.tests.iter_mut().zip([" passed", " failed"]) {
                    *count += number_before(result, word).unwrap_or(0);
                }
            }
        }
        outcome
    }
}

/// Returns the number before `word` in `ok. 3 passed; 0 failed; …`.
fn number_before(text: &str, word: &str) -> Option<u64> {
    let (before, _) = text.split_once(word)?;
    before.rsplit(' ').next()?.parse().ok()
}

impl fmt::Display for JobOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [passed, failed] = self.tests;
        write!(f, "{passed} passed, ")?;
        if !self.passed {
            write!(f, "{failed} FAILED, ")?;
        }
        if !self.skipped.is_empty() {
            write!(f, "{} of them skipped, ", self.skipped.len())?;
        }
        write!(f, "{:.1} s, {:.1} s of a processor", self.took.as_secs_f64(), self.processor.as_secs_f64())
    }
}

/// The summary of all outcomes.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// For each binary the time, the processor time, and the number of tests.
    binaries: BTreeMap<String, (Duration, Duration, u64)>,
    tests: [u64; 2],
    /// The number of tests skipped for each reason.
    skipped: BTreeMap<String, u64>,
    /// For each step beside the tests that was skipped, the reason.
    skipped_steps: Vec<String>,
}

/// The end of a reason that an installation removes; other reasons are about old versions.
const MISSING: &str = " is not installed";

impl Tally {
    pub(super) fn new<'a>(
        outcomes: impl Iterator<Item = (&'a TestJob, &'a JobOutcome)>,
        skipped_steps: &[String],
    ) -> Self {
        let mut tally = Self { skipped_steps: skipped_steps.to_vec(), ..Self::default() };
        outcomes.for_each(|(job, outcome)| tally.add(job.binary(), outcome));
        tally
    }

    /// Returns true if a test was skipped because the machine lacks something.
    pub(crate) fn misses_something(&self) -> bool {
        self.skipped.keys().any(|reason| reason.ends_with(MISSING))
    }

    fn add(&mut self, binary: &str, outcome: &JobOutcome) {
        let (took, processor, tests) = self.binaries.entry(binary.into()).or_default();
        *took += outcome.took;
        *processor += outcome.processor;
        for (sum, count) in self.tests.iter_mut().zip(outcome.tests) {
            *sum += count;
            *tests += count;
        }
        for reason in &outcome.skipped {
            *self.skipped.entry(reason.clone()).or_default() += 1;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut binaries: Vec<_> = self.binaries.iter().collect();
        binaries.sort_by_key(|(_, (_, processor, _))| Reverse(*processor));
        writeln!(f, "seconds, of a processor, tests")?;
        for (name, (took, processor, tests)) in binaries {
            writeln!(f, "{:7.1} {:7.1} {tests:5} {name}", took.as_secs_f64(), processor.as_secs_f64())?;
        }
        let ([passed, failed], skipped) = (self.tests, self.skipped.values().sum::<u64>());
        let passed = passed.saturating_sub(skipped);
        let steps = self.skipped_steps.iter().map(|reason| (reason, 1));
        let reasons: Vec<_> =
            self.skipped.iter().map(|(reason, count)| (reason, *count)).chain(steps).collect();
        let skipped: u64 = reasons.iter().map(|(_, count)| count).sum();
        write!(f, "{passed} tests passed, {failed} failed, {skipped} skipped")?;
        for (index, (reason, count)) in reasons.iter().enumerate() {
            write!(f, "{}{reason} ({count})", if index == 0 { ": " } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 4 tests
test a ... ok

successes:

---- a stdout ----
skipped: libipt is not installed
skipped: libipt is not installed

---- b stdout ----
12 packets compared
skipped: libpfm4 is too old for zen5

---- c stdout ----
skipped in words

successes:
    a
    b

test result: ok. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

skipped: is no test's line
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn a_skipped_test_is_counted_once_with_its_reason() {
        let outcome = JobOutcome::read(true, Duration::ZERO, Duration::ZERO, OUTPUT);
        assert_eq!(outcome.tests, [5, 1]);
        assert_eq!(outcome.skipped, ["libipt is not installed", "libpfm4 is too old for zen5"]);
    }

    #[test]
    fn the_closing_line_has_what_was_skipped_and_why() {
        let outcome = JobOutcome::read(true, Duration::from_secs(2), Duration::from_secs(3), OUTPUT);
        let mut tally = Tally::default();
        tally.add("kernel lib", &outcome);
        tally.add("lab/harness tests/qemu_log", &outcome);
        tally.add("lab/harness tests/qemu_log", &outcome);
        let text = tally.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1..],
            [
                "    4.0     6.0    12 lab/harness tests/qemu_log",
                "    2.0     3.0     6 kernel lib",
                "9 tests passed, 3 failed, 6 skipped: libipt is not installed (3), libpfm4 is too old for zen5 (3)",
            ]
        );
    }

    #[test]
    fn a_step_that_was_skipped_is_counted_and_takes_no_test_away() {
        let outcome = JobOutcome::read(true, Duration::ZERO, Duration::ZERO, OUTPUT);
        let mut tally = Tally::new(std::iter::empty(), &["Miri: no nightly toolchain".to_owned()]);
        tally.add("kernel lib", &outcome);
        assert_eq!(
            tally.to_string().lines().last(),
            Some(
                "3 tests passed, 1 failed, 3 skipped: libipt is not installed (1), libpfm4 is too old for zen5 (1), \
                 Miri: no nightly toolchain (1)"
            )
        );
    }

    #[test]
    fn what_can_be_installed_is_told_from_what_is_old() {
        let misses = |reason: &str| {
            let mut tally = Tally::default();
            tally.add("a", &JobOutcome { skipped: vec![reason.into()], ..JobOutcome::default() });
            tally.misses_something()
        };
        assert!(misses("libipt is not installed"));
        assert!(!misses("libpfm4 is too old for zen5"));
        assert!(!Tally::default().misses_something());
    }
}
