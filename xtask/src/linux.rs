//! `cargo xtask linux`: `pugmark boot --linux`, as built from this tree, and perf in the guest against the truth.

use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_harness::images::{build_monitor, build_pugmark};
use pugmark_harness::linux::boots::{self, Booted};
use pugmark_harness::linux::verify::{Verified, Verify, all};
use pugmark_harness::linux::{PERF, Packages, packages};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::setup::{self, SetupOptions};

#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask linux                                        a shell; what is in /out at its end comes to the host
  cargo xtask linux -- perf record -e intel_pt//u -o /out/perf.data -- gzip -k /etc/passwd
  cargo xtask linux --with ./a.out:/bin/a.out -- perf stat a.out
  cargo xtask linux --boots                                Debian's kernels on all processors, and their complaints
  cargo xtask linux --verify=skylake                       perf and our decoder against the truth, on one processor")]
pub(crate) struct LinuxOptions {
    #[command(flatten)]
    setup: SetupOptions,
    /// Let perf record programs in the guest, in many ways, and hold what perf's decoder and ours find in its files
    /// against what the monitor logged; only the rows that have this text, if one is given
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "", require_equals = true)]
    verify: Option<String>,
    /// Boot each of these kernels on each profile with the watchdog's counter on, let perf sample and count, and print
    /// what they complain of; only those whose row has this text, if one is given
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "", require_equals = true)]
    #[arg(conflicts_with = "verify")]
    boots: Option<String>,
    /// Options of `pugmark boot --linux`, and after `--` the command to run in the guest; without it a shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS AND COMMAND")]
    #[arg(conflicts_with_all = ["verify", "boots"])]
    boot: Vec<OsString>,
}

/// Boots Linux as the options say.
pub(crate) fn linux(options: &LinuxOptions) -> Result<ExitCode> {
    setup::prepare_linux(options.setup.no_install)?;
    let packages = packages::packages(options.setup.no_install);
    if let Some(text) = &options.boots {
        return boots(&packages, text);
    }
    let (kernel, pugmark) = (packages.kernel()?, build_pugmark()?);
    if let Some(text) = &options.verify {
        let (busybox, perf) = (packages.busybox()?, PathBuf::from(PERF));
        return verify(&Verify { kernel, busybox, perf, pugmark, kept: packages.folder.join("wrong") }, text);
    }
    let mut command = Command::new(pugmark);
    command.arg("boot").args(words(&options.boot, kernel));
    let status = command.env("PUGMARK_MONITOR", build_monitor()?).status().context("cannot start pugmark")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns the arguments of `pugmark boot`: the kernel, unless one is named, and `--` before a command.
fn words(given: &[OsString], kernel: PathBuf) -> Vec<OsString> {
    let is_command = given.first().is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let options = given.split(|word| word == "--").next().unwrap_or_default();
    let has_kernel = !is_command && options.iter().any(|word| word == "--linux");
    let own = if has_kernel { vec![] } else { vec!["--linux".into(), kernel.into()] };
    let separator = is_command.then(|| "--".into());
    own.into_iter().chain(separator).chain(given.iter().cloned()).collect()
}

/// Boots the kernels on the profiles whose row has this text.
fn boots(packages: &Packages, text: &str) -> Result<ExitCode> {
    let rows: Vec<_> = boots::all().filter(|row| row.to_string().contains(text)).collect();
    ensure!(!rows.is_empty(), "no kernel and profile has {text:?}");
    let mut wrong = 0;
    for row in &rows {
        match row.run(packages) {
            Ok(booted) => {
                let Booted { version, time, complaints, counters } = booted;
                wrong += usize::from(!complaints.is_empty());
                let count = complaints.len();
                println!("{:6.1} s {count:3} complaints  {row}, {version}: {counters}", time.as_secs_f64());
                complaints.iter().for_each(|line| println!("    {line}"));
            }
            Err(error) => {
                wrong += 1;
                println!("wrong: {row}: {error:#}");
            }
        }
    }
    println!("{} of {} boots are without complaints", rows.len() - wrong, rows.len());
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the rows of the table that have this text.
fn verify(verify: &Verify, text: &str) -> Result<ExitCode> {
    let rows: Vec<_> = all().into_iter().filter(|row| row.to_string().contains(text)).collect();
    ensure!(!rows.is_empty(), "no row of the table has {text:?}");
    let mut wrong = 0;
    println!(
        "{:>9} {:>12} {:>9} {:>9}  {:>9}  what was recorded",
        "compared", "instructions", "stepped", "a second", "bytes"
    );
    verify.run(&rows, |row, result| match result {
        Ok(Verified { compared, instructions, stepped, bytes, time }) => {
            let rate = stepped as f64 / time.as_secs_f64();
            println!("{compared:9} {instructions:12} {stepped:9} {rate:9.0}  {bytes:9}  {row}");
        }
        Err(error) => {
            wrong += 1;
            println!("wrong: {row}: {error:#}");
        }
    })?;
    println!("{} of {} rows are the truth's", rows.len() - wrong, rows.len());
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_debians_unless_one_is_named_and_a_command_stands_after_its_mark() {
        for (given, expected) in [
            ("", "--linux k"),
            ("perf record -- gzip", "--linux k -- perf record -- gzip"),
            ("--with a -- perf --linux", "--linux k --with a -- perf --linux"),
            ("--linux trixie-cloud -- uname", "--linux trixie-cloud -- uname"),
        ] {
            let given: Vec<OsString> = given.split_whitespace().map(Into::into).collect();
            assert_eq!(words(&given, "k".into()).join("".as_ref()), *expected.replace(' ', ""));
        }
    }
}
