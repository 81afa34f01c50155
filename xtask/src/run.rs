//! `cargo xtask run`.

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pugmark_builds::parallel::run_in_parallel;
use pugmark_harness::{
    boots::{Boot, boots, processors},
    examples, expected,
    images::{BY_FIRMWARE, EXAMPLES, Images, build_example, firmware_target},
    judge::{Evidence, Source, Verdict, judge_by_truth_alone},
    machine::{Machine, Outcome},
    symbols::Symbols,
    truth::Truth,
};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{SetupOptions, setup};

#[derive(Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    setup: SetupOptions,
    /// The processor that the monitor shows; otherwise skylake, or with a `--source` other than `pt` each that has it
    #[arg(long)]
    profile: Option<String>,
    /// The unit that traces, counts or samples; otherwise Intel PT and the Branch Trace Store, one after the other
    #[arg(long, value_parser = source_parser())]
    source: Option<Source>,
    /// Run these workloads only, separated by commas
    #[arg(long)]
    only: Option<String>,
    /// Boot this kernel on the monitor in place of ours: a PVH or multiboot2 ELF that speaks the guest protocol
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "only"])]
    kernel: Option<PathBuf>,
    /// Boot one of the example kernels in place of ours
    #[arg(long, value_name = "NAME", value_parser = EXAMPLES)]
    #[arg(conflicts_with_all = ["kernel", "source", "only", "profile"])]
    example: Option<String>,
    /// Boot the example by GRUB, from a CD, with the BIOS below it
    #[arg(long, requires = "example")]
    grub: bool,
    /// With `--grub`: UEFI firmware (OVMF) below it, and not the BIOS
    #[arg(long, requires = "grub")]
    uefi: bool,
    /// The machine's number of processors; our kernel traces on all of them at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    processors: u16,
    /// Write every instruction that retired under tracing: `session cpu cpl cr3 address`, a line each
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// More options for the monitor, such as `pmi-skid=100`
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    monitor: String,
}

/// Parses a source by its word.
fn source_parser() -> impl TypedValueParser<Value = Source> {
    let value = |source: &Source| PossibleValue::new(source.word()).help(source.description());
    let words = PossibleValuesParser::new(Source::ALL.iter().map(value));
    words.try_map(|word| word.parse::<Source>())
}

/// The profile if none is named: it has both default sources.
const DEFAULT_PROFILE: &str = "skylake";

/// One boot of a kernel, and the row that its runs are checked against.
struct BootJob<'a> {
    /// The text to print before the boot.
    headline: Option<String>,
    kernel: &'a Path,
    boot: Boot,
    /// The row of the table of expectations; `None` for a kernel that is in no table.
    row: Option<(Source, &'a str)>,
}

/// Boots, traces and compares; prints the guest's lines and the verdicts.
pub(crate) fn run(options: &RunOptions) -> Result<ExitCode> {
    setup::prepare(options.setup.no_install)?;
    if options.grub {
        setup::prepare_grub(options.setup.no_install)?;
    }
    let images = Images::build()?;
    if let Some(name) = &options.example {
        return run_example(name, options, &images);
    }
    let jobs = match &options.kernel {
        Some(kernel) => vec![job_of_kernel(options, kernel)],
        None => jobs_by_table(options, &images),
    };
    let outcomes =
        run_in_parallel(&jobs, |job, print| job.run(options, &images, print), |line| println!("{line}"));
    let mut total = RunTally::default();
    let mut truths = Vec::new();
    for outcome in outcomes {
        let (tally, outcome) = outcome?;
        total.add(tally);
        truths.push(outcome.truth);
    }
    if let Some(file) = &options.truth {
        write_truth(file, &truths)?;
    }
    println!("done {} passed {} failed", total.passed, total.failed);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Boots an example, prints its output, and reports whether that is right.
fn run_example(name: &str, options: &RunOptions, images: &Images) -> Result<ExitCode> {
    if BY_FIRMWARE.contains(&name) {
        ensure!(!options.grub, "no GRUB boots the example {name}: firmware does");
        setup::require_targets(&[firmware_target(name)], options.setup.no_install)?;
    }
    let image = build_example(name)?;
    let print = |line: &str| println!("{line}");
    let outcome = match options.grub {
        true => examples::boot_by_grub(images, name, &image, options.uefi, print)?,
        false => examples::run(images, name, &image, &options.monitor, print)?,
    };
    if let Some(file) = &options.truth {
        write_truth(file, std::slice::from_ref(&outcome.truth))?;
    }
    match examples::check(name, &image, &outcome) {
        Ok(verdict) => println!("truth {name} {verdict}"),
        Err(error) => {
            println!("truth {name} DIFFERS: {error:#}");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn job_of_kernel<'a>(options: &RunOptions, kernel: &'a Path) -> BootJob<'a> {
    let profile = options.profile.as_deref().unwrap_or(DEFAULT_PROFILE);
    let boot = Boot { monitor_options: format!("profile={profile}"), command_line: String::new() };
    BootJob { headline: None, kernel, boot, row: None }
}

/// Returns the boots of our kernel, one source after the other.
fn jobs_by_table<'a>(options: &'a RunOptions, images: &'a Images) -> Vec<BootJob<'a>> {
    let mut jobs = vec![];
    let only = options.only.as_deref();
    let sources = options.source.map_or_else(|| vec![Source::Pt, Source::Bts], |source| vec![source]);
    for source in sources {
        for profile in profiles(options, source) {
            let mut headline = Some(format!("== {} on {profile}", source.title()));
            jobs.extend(boots(source, profile, only).into_iter().map(|boot| BootJob {
                headline: headline.take(),
                kernel: &images.guest,
                boot,
                row: Some((source, profile)),
            }));
        }
    }
    jobs
}

/// Returns the profiles for a source.
fn profiles(options: &RunOptions, source: Source) -> Vec<&str> {
    match (&options.profile, options.source) {
        (Some(profile), _) => vec![profile],
        (None, None | Some(Source::Pt)) => vec![DEFAULT_PROFILE],
        (None, Some(_)) => expected::profiles(source),
    }
}

impl BootJob<'_> {
    /// Runs the machine to its end, and passes the guest's lines and the verdicts to `print`.
    fn run(
        &self,
        options: &RunOptions,
        images: &Images,
        print: &mut dyn FnMut(String),
    ) -> Result<(RunTally, Outcome)> {
        if let Some(headline) = &self.headline {
            print(headline.clone());
        }
        let symbols = Symbols::read(self.kernel)?;
        let monitor_options = format!("{} {}", self.boot.monitor_options, options.monitor);
        // Only our kernel knows this word.
        let words = self.row.map_or_else(String::new, |_| processors(options.processors));
        let command_line = format!("{}{words}", self.boot.command_line);
        let machine = Machine::kernel_on_monitor(images, self.kernel, &monitor_options, &command_line)
            .processors(options.processors);
        let mut tally = RunTally::default();
        let outcome = machine.run_watched(|line, transcript, truth| {
            // There are hundreds of lines with addresses.
            let many = ["sample ", "precise ", "branch "].iter().any(|word| line.starts_with(word));
            if !line.starts_with("done ") && !many {
                print(line.into());
            }
            let ended = line.starts_with("ok ") || line.starts_with("fail ");
            if let Some(run) = transcript.runs.last().filter(|_| ended) {
                let evidence = Evidence { run, truth, symbols: &symbols, image: self.kernel };
                let (verdict, right) = verdict(self.judge(&evidence));
                print(format!("truth {} {verdict}", run.name));
                tally.count(right);
            }
        })?;
        Ok((tally, outcome))
    }

    /// Judges a run by the table of expectations; if the kernel is in no table, by the log alone.
    fn judge(&self, evidence: &Evidence<'_>) -> Judgement {
        match self.row {
            Some((source, profile)) => expected::check(source, profile, evidence),
            None => judge_by_truth_alone(evidence.run, evidence.truth, evidence.symbols),
        }
    }
}

/// The verdict of a run that is right; `None` if there was nothing to compare.
type Judgement = Result<Option<Verdict>>;

/// Returns the text for a workload that has just ended, and true if the run is right.
fn verdict(judgement: Judgement) -> (Cow<'static, str>, bool) {
    match judgement {
        Ok(Some(verdict)) => (verdict.to_string().into(), true),
        Ok(None) => ("nothing was traced, as expected".into(), true),
        Err(error) => (format!("DIFFERS: {error:#}").into(), false),
    }
}

/// The numbers of runs that were right and wrong.
#[derive(Default)]
struct RunTally {
    passed: u64,
    failed: u64,
}

impl RunTally {
    fn count(&mut self, right: bool) {
        *(if right { &mut self.passed } else { &mut self.failed }) += 1;
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Writes every instruction that was logged into a file.
pub(crate) fn write_truth(file: &Path, truths: &[Truth]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut out = std::io::BufWriter::new(std::fs::File::create(file)?);
        truths.iter().try_for_each(|truth| truth.write(&mut out))?;
        std::io::Write::flush(&mut out)
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}
