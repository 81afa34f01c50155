//! `cargo xtask run`.

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use pugmark_qemu_tests::{
    branch_matrix, branches,
    images::Images,
    judge::judge,
    machine::{Machine, Outcome},
    matrix,
    protocol::Run,
    symbols::Symbols,
    truth::Truth,
};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{SetupOptions, headline, setup};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    setup: SetupOptions,
    /// The processor that the monitor shows; otherwise skylake, or with `--source bts` each that has a Branch Trace Store
    #[arg(long)]
    profile: Option<String>,
    /// What traces; otherwise one source after the other
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

/// A source of trace.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    /// Intel Processor Trace
    Pt,
    /// Intel's Branch Trace Store
    Bts,
}

/// The processor that has both sources.
const BOTH: &str = "skylake";

/// Boots, traces, compares; prints the guest's lines with the truth beside them.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::prepare(options.setup.no_install)?;
    let images = Images::build()?;
    let mut score = Score::default();
    let mut truths = Vec::new();
    if let Some(kernel) = &options.kernel {
        let profile = options.profile.as_deref().unwrap_or(BOTH);
        let monitor_options = format!("profile={profile} {}", options.monitor);
        let machine =
            Machine::kernel_on_monitor(&images, kernel, &monitor_options, "").processors(options.processors);
        truths.push(boot(&machine, kernel, judge_by_truth, &mut score)?.truth);
    } else {
        let sources = [Source::Pt, Source::Bts];
        for source in sources.into_iter().filter(|source| options.source.is_none_or(|only| only == *source)) {
            for profile in profiles(options, source) {
                truths.extend(run_by_table(&images, options, source, profile, &mut score)?);
            }
        }
    }
    if let Some(file) = &options.truth {
        write_truth(file, &truths)?;
    }
    println!("done {} passed {} failed", score.passed, score.failed);
    Ok(if score.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// On which processors a source is shown.
fn profiles(options: &Options, source: Source) -> Vec<&str> {
    match (&options.profile, options.source, source) {
        (Some(profile), ..) => vec![profile],
        (None, Some(_), Source::Bts) => branch_matrix::PROFILES.to_vec(),
        (None, ..) => vec![BOTH],
    }
}

/// Runs our kernel, and holds it against what the tables expect.
fn run_by_table(
    images: &Images,
    options: &Options,
    source: Source,
    profile: &str,
    score: &mut Score,
) -> Result<Vec<Truth>> {
    let name = match source {
        Source::Pt => "Intel Processor Trace",
        Source::Bts => "Branch Trace Store",
    };
    headline(&format!("{name} on {profile}"));
    let only = options.only.as_deref();
    let boots = match source {
        Source::Pt => matrix::boots(profile, only),
        Source::Bts => vec![branch_matrix::boot(profile, only)],
    };
    let by_table = |run: &Run, truth: &Truth, symbols: &Symbols| match source {
        Source::Pt => matrix::check(run, profile, truth, symbols).map(said),
        Source::Bts => branch_matrix::check(run, profile, truth, symbols).map(said),
    };
    let run = |plan: matrix::Boot| {
        let monitor_options = format!("{} {}", plan.monitor_options, options.monitor);
        let machine =
            Machine::on_monitor(images, &monitor_options, &plan.command_line).processors(options.processors);
        Ok(boot(&machine, &images.guest, by_table, score)?.truth)
    };
    boots.into_iter().map(run).collect()
}

#[derive(Default)]
struct Score {
    passed: u64,
    failed: u64,
}

/// What a run that is right says of the truth; none where there was nothing to compare.
type Judgement = Result<Option<String>>;

fn boot(
    machine: &Machine,
    kernel: &Path,
    judgement: impl Fn(&Run, &Truth, &Symbols) -> Judgement,
    score: &mut Score,
) -> Result<Outcome> {
    let symbols = Symbols::read(kernel)?;
    machine.run_watched(|line, transcript, truth| {
        if line.starts_with("done ") {
            return;
        }
        println!("{line}");
        let ended = line.starts_with("ok ") || line.starts_with("fail ");
        if let Some(run) = transcript.runs.last().filter(|_| ended) {
            score.count(run, judgement(run, truth, &symbols));
        }
    })
}

impl Score {
    /// Prints what the truth says of a workload that has just ended, and counts it.
    fn count(&mut self, run: &Run, judgement: Judgement) {
        let right = judgement.is_ok();
        match judgement {
            Ok(Some(verdict)) => println!("truth {} {verdict}", run.name),
            Ok(None) => println!("truth {} nothing was traced, as expected", run.name),
            Err(error) => println!("truth {} DIFFERS: {error:#}", run.name),
        }
        *(if right { &mut self.passed } else { &mut self.failed }) += 1;
    }
}

/// For a kernel that is in no table: its decode, if it has one, must be the truth.
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
