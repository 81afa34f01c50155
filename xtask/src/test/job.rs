//! The jobs in the queue: whole binaries, single tests that boot machines, the documentation tests.

use anyhow::{Context, Result, ensure};
use pugmark_builds::cargo::{FOR_TESTS, command as cargo};
use pugmark_builds::test_binaries::{TestBinary, libafl};
use std::cmp::Reverse;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::outcome::JobOutcome;

/// Binaries whose tests are separate jobs: those that boot machines, and those that record programs.
const RUN_TEST_BY_TEST: [&str; 3] = ["lab/harness tests/", "tools tests/record", "tools tests/views"];

/// The names of the jobs with documentation tests: those of the workspace, and those of the observer for LibAFL.
const DOCUMENTATION: [&str; 2] = ["documentation", "fuzz/libafl documentation"];

/// The approximate seconds of long jobs, by the beginning of their names. They only order the queue.
const EXPECTED_SECONDS: [(&str, u64); 9] = [
    ("lab/harness tests/qemu_log", 100),
    ("lab/harness tests/linux_boots", 90),
    ("xtask tests/published", 80),
    ("tools tests/linux", 60),
    ("tools tests/people", 60),
    ("lab/harness tests/samples", 60),
    (DOCUMENTATION[0], 30),
    ("lab/harness tests/counters everything", 25),
    ("tools tests/record", 20),
];
/// The approximate seconds of any other job: a single test, or a binary.
const DEFAULT_SECONDS: [u64; 2] = [10, 5];

/// A part of the tests that runs separately.
pub(super) enum TestJob {
    /// The documentation tests of the workspace, which cargo runs.
    Documentation,
    /// The documentation tests of the observer for LibAFL.
    LibaflDocumentation,
    /// A binary, or one test of it.
    Binary(TestBinary, Option<String>),
}

/// Returns all jobs, the longest first.
pub(super) fn jobs(binaries: &[TestBinary]) -> Result<Vec<TestJob>> {
    let mut jobs = vec![TestJob::Documentation, TestJob::LibaflDocumentation];
    for binary in binaries {
        let tests = if RUN_TEST_BY_TEST.iter().any(|prefix| binary.name.starts_with(prefix)) {
            tests(binary)?
        } else {
            vec![None]
        };
        jobs.extend(tests.into_iter().map(|test| TestJob::Binary(binary.clone(), test)));
    }
    jobs.sort_by_key(|job| Reverse(job.expected()));
    Ok(jobs)
}

/// Returns the names of a binary's tests.
fn tests(binary: &TestBinary) -> Result<Vec<Option<String>>> {
    let output = Command::new(&binary.file).args(["--list", "--format", "terse"]).output()?;
    ensure!(output.status.success(), "{} does not list its tests", binary.name);
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(|name| Some(name.into())).collect())
}

impl TestJob {
    /// Returns the binary's name.
    pub(super) fn binary(&self) -> &str {
        match self {
            Self::Documentation => DOCUMENTATION[0],
            Self::LibaflDocumentation => DOCUMENTATION[1],
            Self::Binary(binary, _) => &binary.name,
        }
    }

    fn expected(&self) -> u64 {
        let [boot, binary] = DEFAULT_SECONDS;
        let name = self.to_string();
        let known =
            EXPECTED_SECONDS.iter().find(|(job, _)| name.starts_with(job)).map(|(_, seconds)| *seconds);
        known.unwrap_or(if matches!(self, Self::Binary(_, Some(_))) { boot } else { binary })
    }

    fn command(&self) -> Command {
        match self {
            Self::Documentation => {
                let arguments = ["test", "--workspace", "--doc", "--locked"];
                cargo(&arguments.into_iter().chain(FOR_TESTS).collect::<Vec<_>>())
            }
            Self::LibaflDocumentation => {
                let of_libafl = libafl();
                let arguments = ["test", "--doc", "--locked"].into_iter().chain(FOR_TESTS);
                cargo(&arguments.chain(of_libafl.iter().map(String::as_str)).collect::<Vec<_>>())
            }
            Self::Binary(binary, test) => {
                let mut command = Command::new(&binary.file);
                // One thread, because there are already as many jobs as processors. The output is shown, because tests
                // report there what they skip.
                command.args(["--show-output", "--test-threads=1"]);
                command.args(test.iter().flat_map(|test| ["--exact", test]));
                command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
                command
            }
        }
    }

    /// Runs the job. Its output goes into a file and is printed if it fails.
    pub(super) fn run(&self, logs: &Path) -> Result<JobOutcome> {
        let log = logs.join(format!("{}.log", self.to_string().replace(['/', ' ', ':'], "-")));
        let file = File::create(&log)?;
        let begin = Instant::now();
        let mut child = self.command();
        child.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = child.spawn().with_context(|| format!("cannot start {self}"))?;
        let (passed, processor) = wait(child.id())?;
        let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        if !passed {
            println!("{text}");
        }
        Ok(JobOutcome::read(passed, begin.elapsed(), processor, &text))
    }
}

impl fmt::Display for TestJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.binary())?;
        let Self::Binary(_, Some(test)) = self else { return Ok(()) };
        write!(f, " {test}")
    }
}

/// Waits for a child. Returns whether it succeeded, and the processor time that it and the children it waited for
/// took.
fn wait(child: u32) -> Result<(bool, Duration)> {
    let mut status = 0;
    // SAFETY: all zeros are a valid value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let child = libc::pid_t::try_from(child)?;
    // SAFETY: both pointers are to values of this function, and nothing else waits for this child.
    let waited = unsafe { libc::wait4(child, &raw mut status, 0, &raw mut usage) };
    ensure!(waited == child, "cannot wait for a test: {}", std::io::Error::last_os_error());
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    Ok((status == 0, time(usage.ru_utime) + time(usage.ru_stime)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_end_and_time_are_its_own() {
        let shell = |script| wait(Command::new("sh").args(["-c", script]).spawn().unwrap().id()).unwrap();
        assert!(shell("exit 0").0);
        assert!(!shell("exit 1").0);
        assert!(!shell("kill -KILL $$").0);
        // The time of its own children counts too.
        let (passed, time) = shell("(i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done); true");
        assert!(passed && !time.is_zero(), "{time:?}");
    }
}
