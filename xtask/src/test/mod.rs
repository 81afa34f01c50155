//! `cargo xtask test`.
//!
//! One call of cargo builds everything, because the choice of packages also chooses their dependencies' features: a
//! second call would build some of them again. After that the test binaries wait in one queue.

mod job;
mod outcome;

use anyhow::{Result, ensure};
use clap::Args;
use pugmark_builds::cargo::headline;
use pugmark_builds::parallel::run_with_workers;
use pugmark_builds::test_binaries;
use pugmark_harness::images::{EXAMPLES, Images, build_example, build_foreign_kernel, target_folder};
use std::num::NonZero;
use std::thread;
use std::time::Instant;

use crate::setup::{self, SetupOptions};
use outcome::{JobOutcome, Tally};

/// The maximum number of machines that run at the same time; each has half a GiB of memory.
const AT_A_TIME: usize = 8;

#[derive(Args)]
pub(crate) struct TestOptions {
    #[command(flatten)]
    pub(crate) setup: SetupOptions,
    /// Only test binaries whose name contains this, such as `kernel` or `tests/qemu_log`
    #[arg(default_value = "")]
    pub(crate) name: String,
    /// The reasons for which steps before the tests were skipped
    #[arg(skip)]
    pub(crate) skipped_steps: Vec<String>,
}

/// Runs all tests: unit, model, host integration, QEMU and documentation tests.
pub(crate) fn test(options: &TestOptions) -> Result<Tally> {
    setup::prepare_tests(options.setup.no_install)?;
    let begin = Instant::now();
    let binaries = test_binaries::build()?;
    headline("the images");
    Images::build()?;
    build_foreign_kernel()?;
    build_example(EXAMPLES[0])?;
    println!("built in {:.0} s", begin.elapsed().as_secs_f64());
    let mut jobs = job::jobs(&binaries)?;
    jobs.retain(|job| job.binary().contains(&options.name));
    ensure!(!jobs.is_empty(), "no test binary's name contains {:?}", options.name);
    let logs = target_folder().join("test-logs");
    std::fs::create_dir_all(&logs)?;
    headline(&format!("{} jobs, the longest first; what they say is in {}", jobs.len(), logs.display()));
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(AT_A_TIME);
    let mut done = 0;
    let outcomes = run_with_workers(
        &jobs,
        workers,
        |job| job.run(&logs),
        |job, outcome: &Result<JobOutcome>| {
            done += 1;
            match outcome {
                Ok(outcome) => println!("[{done}/{}] {job}: {outcome}", jobs.len()),
                Err(error) => println!("[{done}/{}] {job}: {error:#}", jobs.len()),
            }
        },
    );
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    let tally = Tally::new(jobs.iter().zip(&outcomes), &options.skipped_steps);
    println!("{tally}");
    println!("in {:.0} s", begin.elapsed().as_secs_f64());
    ensure!(outcomes.iter().all(|outcome| outcome.passed), "tests failed");
    Ok(tally)
}
