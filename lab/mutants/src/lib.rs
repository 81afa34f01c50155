#![doc = include_str!("../README.md")]

mod build;
mod changes;
mod diff;
mod equivalent;
mod modules;
mod mutant;
mod packages;
mod process;
mod recorded;
mod rewrite;
mod run;
mod sites;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_builds::test_binaries::TestBinary;
use pugmark_harness::images::{target_folder, workspace};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use build::{SourceFile, build};
use diff::ChangedLines;
use mutant::Mutant;
use packages::{MutatedPackages, Workspace};
use run::{MutantFate, Tests};

pub use diff::commit_before;

/// The options of `cargo xtask mutants`.
#[derive(Args)]
pub struct MutantsOptions {
    /// The crate to change, such as `decoder-core`
    #[arg(required_unless_present = "changed")]
    name: Option<String>,
    /// Change the lines that differ from this commit, without one from where the branch left origin/main, instead of a
    /// crate; ends with status 1 if a mutant of them survives
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, require_equals = true, conflicts_with = "name")]
    changed: Option<Option<String>>,
    /// Only files whose path contains this
    #[arg(long, default_value = "", value_name = "PART")]
    file: String,
    /// Only functions whose name contains this, such as `Decoder::next`
    #[arg(long, default_value = "", value_name = "PART")]
    function: String,
    /// Try NUMBER mutants, chosen at random
    #[arg(long, value_name = "NUMBER")]
    sample: Option<usize>,
    /// Choose others at random
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
    /// Print the mutants, and do nothing
    #[arg(long)]
    list: bool,
    /// Run NUMBER tests at a time
    #[arg(long, default_value_t = 2, value_name = "NUMBER")]
    jobs: usize,
    /// Only the crate's own tests, not those of the crates that use it
    #[arg(long)]
    own_tests: bool,
    /// Leave out tests that take more than SECONDS seconds of processor time
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    longest: u64,
    /// Try no more tests with a mutant that survived SECONDS seconds of them
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    enough: u64,
    /// Begin no mutant after MINUTES minutes of trying, and say how many are left
    #[arg(long, value_name = "MINUTES")]
    within: Option<u64>,
    /// Write the survivors into this file too
    #[arg(long, value_name = "FILE")]
    survivors: Option<PathBuf>,
}

impl MutantsOptions {
    /// Makes the options for the lines that differ from a commit: the tests of their own crates, and no new mutant
    /// after `minutes`.
    #[must_use]
    pub fn of_changes_since(base: String, minutes: u64) -> Self {
        Self {
            name: None,
            changed: Some(Some(base)),
            file: String::new(),
            function: String::new(),
            sample: None,
            seed: 1,
            list: false,
            jobs: 2,
            own_tests: true,
            longest: 60,
            enough: 10,
            within: Some(minutes),
            survivors: None,
        }
    }
}

/// Finds, builds and tries mutants, and prints the survivors. Returns a failure if a mutant of changed lines survived.
///
/// # Errors
/// If the sources cannot be read, or the tests cannot be built or run.
pub fn mutants(options: &MutantsOptions) -> Result<ExitCode> {
    let Some((subject, sources)) = subject(options)? else {
        println!("no changed line has a mutant");
        return Ok(ExitCode::SUCCESS);
    };
    let all: Vec<Mutant> = sources.iter().flat_map(mutants_of).collect();
    let is_chosen = |mutant: &Mutant| {
        mutant.file.to_string_lossy().contains(&options.file) && mutant.function.contains(&options.function)
    };
    if options.list {
        all.iter().filter(|mutant| is_chosen(mutant)).for_each(|mutant| println!("{mutant}"));
        return Ok(ExitCode::SUCCESS);
    }
    let places = sources.iter().map(|source| source.sites.len()).sum();
    println!("{}: {} mutants in {places} places", subject.name, all.len());
    let folder = target_folder().join("mutants");
    let _alone = pugmark_builds::workspace_copy::lock(&folder)?;
    let begin = Instant::now();
    let (binaries, dropped) = build(&folder, &subject, &sources)?;
    println!(
        "built in {:.0} s, without {} that do not compile",
        begin.elapsed().as_secs_f64(),
        dropped.len()
    );
    let compiled = all.iter().filter(|mutant| !dropped.contains(&(mutant.place, mutant.number)));
    let listed = equivalent::read()?;
    let (equivalent, mut chosen): (Vec<_>, Vec<_>) = compiled
        .filter(|mutant| is_chosen(mutant))
        .partition(|mutant| listed.iter().any(|equivalent| equivalent.describes(mutant)));
    if let Some(sample) = options.sample {
        fastrand::Rng::with_seed(options.seed).shuffle(&mut chosen);
        chosen.truncate(sample);
    }
    ensure!(
        options.changed.is_some() || !chosen.is_empty(),
        "no mutant that compiles is in a file whose path contains {:?} and a function whose name contains {:?}",
        options.file,
        options.function
    );
    let tests = record(options, &folder, &subject.name, binaries, places)?;
    let fates = try_all(options, &tests, &chosen)?;
    println!("{}", summary(&subject.name, &chosen, &fates, equivalent.len()));
    let unnoticed = chosen.iter().zip(&fates).filter(|(mutant, fate)| is_unnoticed(&subject, mutant, fate));
    let fails = options.changed.is_some() && unnoticed.count() != 0;
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the packages to change with their files; `None` if no changed line can be changed further.
fn subject(options: &MutantsOptions) -> Result<Option<(MutatedPackages, Vec<SourceFile>)>> {
    let workspace = Workspace::read()?;
    let Some(base) = &options.changed else {
        let subject = workspace.named(options.name.as_deref().unwrap_or_default(), options.own_tests)?;
        let sources = sources(&subject, |_| true)?;
        return Ok(Some((subject, numbered(sources))));
    };
    let base = base.clone().map_or_else(diff::default_base, Ok)?;
    let lines = ChangedLines::since(&base)?;
    let (mut names, mut all) = (vec![], vec![]);
    for package in workspace.each(options.own_tests) {
        let package = package?;
        let is_wanted = |file: &Path| lines.are_in(file) && file.to_string_lossy().contains(&options.file);
        let mut sources = sources(&package, is_wanted)?;
        sources.iter_mut().for_each(|source| lines.retain_in(source));
        sources.retain(|source| !source.sites.is_empty());
        if !sources.is_empty() {
            names.push(package.name);
            all.extend(sources);
        }
    }
    if names.is_empty() {
        return Ok(None);
    }
    Ok(Some((workspace.all_of(&names, options.own_tests)?, numbered(all))))
}

/// Returns the files of these packages that `is_wanted` selects, with the places that can be changed.
fn sources(subject: &MutatedPackages, is_wanted: impl Fn(&Path) -> bool) -> Result<Vec<SourceFile>> {
    let mut sources = vec![];
    for root in &subject.roots {
        for (path, text) in modules::files(&workspace(), root)? {
            if is_wanted(&path) {
                let sites = sites::find(&text).with_context(|| format!("cannot read {}", path.display()))?;
                sources.push(SourceFile { path, text, sites, first: 0 });
            }
        }
    }
    Ok(sources)
}

/// Numbers the places of all files.
fn numbered(mut sources: Vec<SourceFile>) -> Vec<SourceFile> {
    let mut first = 0;
    for source in &mut sources {
        source.first = first;
        first += source.sites.len();
    }
    sources
}

/// Records the places that each test reaches, and sets the limits for the tests with mutants.
fn record(
    options: &MutantsOptions,
    folder: &Path,
    name: &str,
    binaries: Vec<TestBinary>,
    places: usize,
) -> Result<Tests> {
    let scratch = folder.join("scratch");
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch)?;
    }
    let known = folder.join(format!("{name}.recorded"));
    let longest = Duration::from_secs(options.longest);
    let mut tests = Tests::record(&scratch, &known, binaries, places, options.jobs, longest)?;
    tests.left_out.iter().for_each(|line| println!("left out without a mutant: {line}"));
    tests.end = options.within.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    tests.enough = Duration::from_secs(options.enough);
    Ok(tests)
}

/// Tries mutants, and reports the survivors as they are found, so that work on the first can begin early.
fn try_all(options: &MutantsOptions, tests: &Tests, chosen: &[&Mutant]) -> Result<Vec<MutantFate>> {
    let (mut survivors, mut written) = (options.survivors.as_ref().map(File::create).transpose()?, Ok(()));
    let (mut done, begin) = (0, Instant::now());
    let which = |mutant: &&Mutant| (mutant.place, mutant.number, mutant.function.clone());
    let fates = tests.try_all(chosen, which, |mutant, fate| {
        done += 1;
        if let Some(line) = survivor(mutant, fate) {
            println!("{line}");
            survivors.iter_mut().for_each(|file| written = writeln!(file, "{line}"));
        }
        if done % 200 == 0 {
            println!("[{done}/{}] after {:.0} s", chosen.len(), begin.elapsed().as_secs_f64());
        }
    })?;
    written.context("cannot write the file of `--survivors`")?;
    println!("in {:.0} s", begin.elapsed().as_secs_f64());
    Ok(fates)
}

/// Returns whether tests that are used here should have noticed a mutant. Tests that boot machines are not used, so
/// code that only they reach may be tested; and a constant may call code that nothing reaches at run time.
fn is_unnoticed(subject: &MutatedPackages, mutant: &Mutant, fate: &MutantFate) -> bool {
    match fate {
        MutantFate::Killed | MutantFate::TimedOut | MutantFate::NoTimeLeft => false,
        MutantFate::Survived { .. } => true,
        MutantFate::NotReached => {
            !mutant.constant && !subject.only_library.iter().any(|folder| mutant.file.starts_with(folder))
        }
    }
}

fn mutants_of(source: &SourceFile) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (site, place) in source.sites.iter().zip(source.first..) {
        for (number, change) in site.mutants.iter().enumerate() {
            let (line, column) = sites::position(&source.text, change.offset);
            let line_text = source.text.lines().nth(line - 1).unwrap_or_default().trim().into();
            mutants.push(Mutant {
                place,
                number,
                file: source.path.clone(),
                function: site.function.clone(),
                constant: site.constant,
                line,
                column,
                line_text,
                old: change.old.clone(),
                new: change.new.clone(),
            });
        }
    }
    mutants
}

/// Returns the line that reports a mutant that no test noticed.
fn survivor(mutant: &Mutant, fate: &MutantFate) -> Option<String> {
    let why = match fate {
        MutantFate::Killed | MutantFate::TimedOut | MutantFate::NoTimeLeft => return None,
        MutantFate::Survived { binaries, untried: 0 } => format!("reached by: {}", binaries.join(", ")),
        MutantFate::Survived { binaries, untried } => {
            format!("reached by: {}; {untried} tests were not tried", binaries.join(", "))
        }
        MutantFate::NotReached if mutant.constant => "not reached; constants may call it".into(),
        MutantFate::NotReached => "not reached".into(),
    };
    Some(format!("{mutant}  ({why})"))
}

/// Sums up the number and share of mutants by their fate.
fn summary(package: &str, chosen: &[&Mutant], fates: &[MutantFate], equivalent: usize) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    for (mutant, fate) in chosen.iter().zip(fates) {
        let heading = match fate {
            MutantFate::Killed => "noticed",
            MutantFate::TimedOut => "timed out",
            MutantFate::NoTimeLeft => continue,
            MutantFate::Survived { .. } => "survived",
            MutantFate::NotReached if mutant.constant => "not reached, in functions that constants may call",
            MutantFate::NotReached => "not reached",
        };
        *counts.entry(heading).or_default() += 1;
    }
    let tried: usize = counts.values().sum();
    let share = |count: usize| 100.0 * count as f64 / tried.max(1) as f64;
    let counts: Vec<_> =
        counts.iter().map(|(heading, count)| format!("{count} {heading} ({:.1}%)", share(*count))).collect();
    let left = chosen.len() - tried;
    format!("{package}: {tried} tried: {}; {equivalent} equivalent left out; {left} left", counts.join(", "))
}
