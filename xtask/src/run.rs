//! `cargo xtask run`.

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use pugmark_qemu_tests::{
    amd_matrix, branch_matrix, branches,
    images::Images,
    judge::judge,
    machine::{Machine, Outcome},
    matrix::{self, Boot},
    report::Run,
    store_matrix,
    symbols::Symbols,
    truth::Truth,
};
use std::borrow::Cow;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{SetupOptions, parallel::run_in_parallel, setup};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    setup: SetupOptions,
    /// The processor that the monitor shows; otherwise skylake, or with `--source bts`, `pebs`, `lbr`, `counters` or `ibs` each that has it
    #[arg(long)]
    profile: Option<String>,
    /// What traces, counts or samples; otherwise Intel PT and the Branch Trace Store, one after the other
    #[arg(long, value_enum)]
    source: Option<Source>,
    /// Run these workloads only, separated by commas
    #[arg(long)]
    only: Option<String>,
    /// Boot this kernel on the monitor in place of ours: a PVH or multiboot2 ELF that speaks the guest protocol
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// How many processors the machine has
    #[arg(long, value_name = "N", default_value_t = 1)]
    processors: u16,
    /// Write every instruction that retired under tracing: `session cpu cpl cr3 address`, a line each
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// More options for the monitor, such as `pmi-skid=100`
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    monitor: String,
}

/// A source of trace, of counts or of samples.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    /// Intel Processor Trace
    Pt,
    /// Intel's Branch Trace Store
    Bts,
    /// Intel's processor event-based sampling
    Pebs,
    /// Intel's last branch records
    Lbr,
    /// AMD's performance counters
    Counters,
    /// AMD's Instruction Based Sampling
    Ibs,
}

/// The profile that has both default sources.
const BOTH: &str = "skylake";

/// One boot of a kernel, and what its runs are checked against.
struct Job<'a> {
    /// The text to print before it.
    headline: Option<String>,
    kernel: &'a Path,
    plan: Boot,
    expected: Expected<'a>,
}

/// What a run must give.
#[derive(Clone, Copy)]
enum Expected<'a> {
    /// What the tables list for our kernel with this source on this profile.
    Table(Source, &'a str),
    /// What was logged, for a kernel that is in no table.
    Truth,
}

/// Boots, traces and compares; prints the guest's lines and the verdicts.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::prepare(options.setup.no_install)?;
    let images = Images::build()?;
    let jobs = match &options.kernel {
        Some(kernel) => vec![job_of_kernel(options, kernel)],
        None => jobs_by_table(options, &images),
    };
    let outcomes =
        run_in_parallel(&jobs, |job, say| job.run(options, &images, say), |line| println!("{line}"));
    let mut all = Score::default();
    let mut truths = Vec::new();
    for outcome in outcomes {
        let (score, outcome) = outcome?;
        all.add(score);
        truths.push(outcome.truth);
    }
    if let Some(file) = &options.truth {
        write_truth(file, &truths)?;
    }
    println!("done {} passed {} failed", all.passed, all.failed);
    Ok(if all.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn job_of_kernel<'a>(options: &Options, kernel: &'a Path) -> Job<'a> {
    let profile = options.profile.as_deref().unwrap_or(BOTH);
    let plan = Boot { monitor_options: format!("profile={profile}"), command_line: String::new() };
    Job { headline: None, kernel, plan, expected: Expected::Truth }
}

/// The boots of our kernel, one source after the other.
fn jobs_by_table<'a>(options: &'a Options, images: &'a Images) -> Vec<Job<'a>> {
    let mut jobs = vec![];
    let only = options.only.as_deref();
    let sources = options.source.map_or_else(|| vec![Source::Pt, Source::Bts], |source| vec![source]);
    for source in sources {
        for profile in profiles(options, source) {
            let plans = match source {
                Source::Pt => matrix::boots(profile, only),
                Source::Bts => vec![branch_matrix::boot(profile, only)],
                Source::Pebs => vec![store_matrix::boot(store_matrix::Source::Pebs, profile, only)],
                Source::Lbr => vec![store_matrix::boot(store_matrix::Source::Lbr, profile, only)],
                Source::Counters => vec![amd_matrix::boot(amd_matrix::Source::Counters, profile, only)],
                Source::Ibs => vec![amd_matrix::boot(amd_matrix::Source::Ibs, profile, only)],
            };
            let mut headline = Some(format!("== {} on {profile}", source.name()));
            jobs.extend(plans.into_iter().map(|plan| Job {
                headline: headline.take(),
                kernel: &images.guest,
                plan,
                expected: Expected::Table(source, profile),
            }));
        }
    }
    jobs
}

/// The profiles for a source.
fn profiles(options: &Options, source: Source) -> Vec<&str> {
    match (&options.profile, options.source, source) {
        (Some(profile), ..) => vec![profile],
        (None, Some(_), Source::Bts) => branch_matrix::PROFILES.to_vec(),
        (None, _, Source::Pebs) => store_matrix::profiles(store_matrix::Source::Pebs),
        (None, _, Source::Lbr) => store_matrix::profiles(store_matrix::Source::Lbr),
        (None, _, Source::Counters | Source::Ibs) => amd_matrix::PROFILES.to_vec(),
        (None, ..) => vec![BOTH],
    }
}

impl Job<'_> {
    /// Runs the machine to its end, and passes the guest's lines and the verdicts to `say`.
    fn run(
        &self,
        options: &Options,
        images: &Images,
        say: &mut dyn FnMut(String),
    ) -> Result<(Score, Outcome)> {
        if let Some(headline) = &self.headline {
            say(headline.clone());
        }
        let symbols = Symbols::read(self.kernel)?;
        let monitor_options = format!("{} {}", self.plan.monitor_options, options.monitor);
        let machine =
            Machine::kernel_on_monitor(images, self.kernel, &monitor_options, &self.plan.command_line)
                .processors(options.processors);
        let mut score = Score::default();
        let outcome = machine.run_watched(|line, transcript, truth| {
            // There are hundreds of lines with addresses.
            let many = ["sample ", "precise ", "branch "].iter().any(|word| line.starts_with(word));
            if !line.starts_with("done ") && !many {
                say(line.into());
            }
            let ended = line.starts_with("ok ") || line.starts_with("fail ");
            if let Some(run) = transcript.runs.last().filter(|_| ended) {
                let (verdict, right) = verdict(self.expected.judge(run, truth, &symbols, self.kernel));
                say(format!("truth {} {verdict}", run.name));
                score.count(right);
            }
        })?;
        Ok((score, outcome))
    }
}

/// The verdict of a run that is right; `None` if there was nothing to compare.
type Judgement = Result<Option<String>>;

/// The text for a workload that has just ended, and whether it is right.
fn verdict(judgement: Judgement) -> (Cow<'static, str>, bool) {
    match judgement {
        Ok(Some(verdict)) => (verdict.into(), true),
        Ok(None) => ("nothing was traced, as expected".into(), true),
        Err(error) => (format!("DIFFERS: {error:#}").into(), false),
    }
}

#[derive(Default)]
struct Score {
    passed: u64,
    failed: u64,
}

impl Score {
    fn count(&mut self, right: bool) {
        *(if right { &mut self.passed } else { &mut self.failed }) += 1;
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl Source {
    const fn name(self) -> &'static str {
        match self {
            Self::Pt => "Intel Processor Trace",
            Self::Bts => "Branch Trace Store",
            Self::Pebs => "Processor Event Based Sampling",
            Self::Lbr => "last branch records",
            Self::Counters => "performance counters",
            Self::Ibs => "Instruction Based Sampling",
        }
    }
}

impl Expected<'_> {
    /// Judges a run; `kernel` is the image that ran.
    fn judge(self, run: &Run, truth: &Truth, symbols: &Symbols, kernel: &Path) -> Judgement {
        let amd = |source, profile| amd_matrix::check(run, source, profile, truth, symbols, kernel).map(said);
        let store =
            |source, profile| store_matrix::check(run, source, profile, truth, symbols, kernel).map(said);
        match self {
            Self::Table(Source::Pebs, profile) => store(store_matrix::Source::Pebs, profile),
            Self::Table(Source::Lbr, profile) => store(store_matrix::Source::Lbr, profile),
            Self::Table(Source::Pt, profile) => matrix::check(run, profile, truth, symbols).map(said),
            Self::Table(Source::Bts, profile) => branch_matrix::check(run, profile, truth, symbols).map(said),
            Self::Table(Source::Counters, profile) => amd(amd_matrix::Source::Counters, profile),
            Self::Table(Source::Ibs, profile) => amd(amd_matrix::Source::Ibs, profile),
            Self::Truth => judge_by_truth(run, truth, symbols),
        }
    }
}

/// Judges a run by the log alone: a decode, if there is one, must equal the truth.
fn judge_by_truth(run: &Run, truth: &Truth, symbols: &Symbols) -> Judgement {
    if run.traces_nothing() {
        Ok(None)
    } else if run.records.is_empty() {
        judge(run, truth, symbols).map(|verdict| Some(verdict.to_string()))
    } else {
        branches::judge(run, truth, symbols).map(|verdict| Some(verdict.to_string()))
    }
}

fn said(verdict: Option<impl Display>) -> Option<String> {
    verdict.map(|verdict| verdict.to_string())
}

fn write_truth(file: &Path, truths: &[Truth]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut out = std::io::BufWriter::new(std::fs::File::create(file)?);
        truths.iter().try_for_each(|truth| truth.write(&mut out))?;
        std::io::Write::flush(&mut out)
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}
