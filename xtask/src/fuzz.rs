//! `cargo xtask fuzz`: looks for inputs that break invariants of all inputs.
//!
//! The targets are those of `fuzz/`; cargo-fuzz runs one after the other. New inputs are collected in the target
//! folder; the corpus in the tree is small and only a start.

use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_builds::cargo::headline;
use pugmark_harness::images::{target_folder, workspace};
use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
};

use crate::setup::{self, SetupOptions};

/// One target for each layer, the lowest first.
const TARGETS: [&str; 14] = [
    "packets",
    "encoder",
    "events",
    "query",
    "insns",
    "blocks",
    "slices",
    "sideband",
    "elf",
    "symbols",
    "kallsyms",
    "perf_map",
    "jitdump",
    "perf_data",
];

/// Arguments for libFuzzer besides the time: limits for each input. Inputs take milliseconds, but a busy machine can
/// stall for half a minute.
const LIMITS: [&str; 4] = ["-rss_limit_mb=1024", "-malloc_limit_mb=256", "-timeout=120", "-max_len=2048"];

/// cargo-fuzz on stable Rust, with debug assertions and overflow checks instead of sanitizers.
const FLAGS: [&str; 4] = ["--sanitizer", "none", "--features", "libfuzzer"];

/// The number of lines of output printed for a finding.
const LINES_SHOWN: usize = 40;

#[derive(Args)]
pub(crate) struct FuzzOptions {
    /// Seconds for which each target runs
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    #[command(flatten)]
    setup: SetupOptions,
    /// Only these targets
    #[arg(value_name = "TARGET", value_parser = clap::builder::PossibleValuesParser::new(TARGETS))]
    targets: Vec<String>,
}

/// Runs each target. Findings are files, and their names are printed at the end.
pub(crate) fn fuzz(options: &FuzzOptions) -> Result<ExitCode> {
    setup::prepare_fuzzing(options.setup.no_install)?;
    headline("cargo fuzz build");
    // The build's output is not captured, because the build takes a while.
    let status = cargo_fuzz("build", &[]).status().context("cannot start cargo")?;
    ensure!(status.success(), "the fuzz targets do not build: cargo's errors are above");
    let mut found = vec![];
    for target in TARGETS {
        if options.targets.is_empty() || options.targets.iter().any(|wanted| wanted == target) {
            headline(&format!("{target}, {} s", options.seconds));
            let result = run(target, options.seconds)?;
            println!("{}", result.summary);
            found.extend(result.finding);
        }
    }
    if found.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("found:");
    found.iter().for_each(|finding| println!("{finding}"));
    Ok(ExitCode::FAILURE)
}

/// The result of a target.
#[derive(Debug, PartialEq, Eq)]
struct FuzzOutcome {
    /// The number of runs, their speed and their coverage.
    summary: String,
    /// The input that broke the target and the command to repeat it, or another failure.
    finding: Option<String>,
}

fn run(target: &str, seconds: u32) -> Result<FuzzOutcome> {
    let gathered = target_folder().join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&gathered)?;
    let committed = workspace().join("fuzz/corpus").join(target);
    let dictionary = workspace().join("fuzz/dictionaries").join(format!("{target}.dict"));
    let time = format!("-max_total_time={seconds}");
    let mut arguments = vec![target.into(), path(&gathered)?, path(&committed)?, "--".into(), time];
    arguments.extend(LIMITS.map(String::from));
    if dictionary.exists() {
        arguments.push(format!("-dict={}", path(&dictionary)?));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = cargo_fuzz("run", &arguments).output().context("cannot start cargo")?;
    Ok(outcome(target, &output))
}

fn outcome(target: &str, output: &Output) -> FuzzOutcome {
    let text = String::from_utf8_lossy(&output.stderr);
    let did = summary(&text).unwrap_or_else(|| "did not run".into());
    if output.status.success() {
        return FuzzOutcome { summary: did, finding: None };
    }
    let shown: Vec<_> = text.lines().rev().take(LINES_SHOWN).collect();
    shown.iter().rev().for_each(|line| println!("  {line}"));
    let finding = crashing_input(&text).map_or_else(
        || format!("{target}: ended with {}", output.status),
        |file| format!("{target}: {file}, again with `cargo fuzz run {} {target} {file}`", FLAGS.join(" ")),
    );
    FuzzOutcome { summary: did, finding: Some(finding) }
}

/// Sums up `#863556  DONE   cov: 351 ft: 1872 corp: 833/104Kb lim: 1024 exec/s: 66427 rss: 28Mb`, or the last such
/// line.
fn summary(output: &str) -> Option<String> {
    let last = output.lines().rev().find(|line| line.starts_with('#') && line.contains("cov: "))?;
    let words: Vec<_> = last.split_whitespace().collect();
    let value = |name: &str| words.iter().skip_while(|word| **word != name).nth(1).copied().unwrap_or("?");
    let runs = words.first()?.trim_start_matches('#');
    let (edges, inputs, pace) = (value("cov:"), value("corp:"), value("exec/s:"));
    Some(format!("{runs} runs, {pace} a second, {edges} edges, {inputs} of inputs"))
}

/// Returns the file to which libFuzzer wrote its finding.
fn crashing_input(output: &str) -> Option<&str> {
    output.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, file)| file.trim())
}

fn cargo_fuzz(verb: &str, arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(["fuzz", verb]).args(FLAGS).args(arguments);
    command.env("CARGO_TARGET_DIR", target_folder().join("fuzz")).current_dir(workspace());
    command
}

fn path(path: &Path) -> Result<String> {
    path.to_path_buf().into_os_string().into_string().map_err(|path| {
        anyhow::anyhow!("the path {} is not UTF-8, which cargo-fuzz needs", PathBuf::from(path).display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

    fn output(status: i32, text: &str) -> Output {
        Output { status: ExitStatus::from_raw(status << 8), stdout: vec![], stderr: text.into() }
    }

    #[test]
    fn the_summary_has_runs_and_edges() {
        let text = "\
            #2\tINITED cov: 12 ft: 12 corp: 1/1b exec/s: 0 rss: 30Mb\n\
            #8192\tDONE   cov: 351 ft: 1872 corp: 833/104Kb lim: 1024 exec/s: 66427 rss: 28Mb\n\
            Done 8192 runs in 1 second(s)\n";
        let summary = "8192 runs, 66427 a second, 351 edges, 833/104Kb of inputs".to_owned();
        assert_eq!(outcome("packets", &output(0, text)), FuzzOutcome { summary, finding: None });
    }

    #[test]
    fn names_the_input_that_breaks_a_target() {
        let text = "\
            thread '<unnamed>' panicked at fuzz/src/elf.rs:18:5:\n\
            artifact_prefix='a/'; Test unit written to a/crash-15bb\n\
            Base64: AQ==\n";
        let outcome = outcome("elf", &output(77, text));
        assert_eq!(outcome.summary, "did not run");
        assert!(outcome.finding.unwrap().starts_with("elf: a/crash-15bb, "));
    }

    #[test]
    fn a_target_that_ends_badly_without_an_input_is_a_finding_too() {
        let finding = outcome("elf", &output(1, "error: no such target\n")).finding;
        assert_eq!(finding.as_deref(), Some("elf: ended with exit status: 1"));
    }

    #[test]
    fn the_targets_are_those_of_the_package() {
        let manifest = std::fs::read_to_string(workspace().join("fuzz/Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let targets = manifest["bin"].as_array().unwrap().iter().map(|bin| bin["name"].as_str().unwrap());
        assert!(targets.eq(TARGETS), "{manifest}");
    }
}
