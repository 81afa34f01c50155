//! Runs many workloads in one boot and judges each of them.

use anyhow::{Result, ensure};
use std::fmt::Display;
use std::path::Path;

use crate::images::Images;
use crate::machine::Machine;
use crate::matrix::{Boot, WORKLOADS};
use crate::report::Run;
use crate::symbols::Symbols;
use crate::truth::Truth;

/// Boots our kernel to run the workloads in `only` (names separated by commas) or, without it, all of them. Judges each
/// run with `check`, which also gets the image that ran, prints the verdict and returns all verdicts. Each printed line
/// begins with `label`.
///
/// # Errors
/// The machine did not end well, a workload is missing, or a run failed its check. The error names every run that
/// failed.
pub fn sweep<V: Display>(
    label: &str,
    boot: &Boot,
    only: Option<&str>,
    check: impl Fn(&Run, &Truth, &Symbols, &Path) -> Result<Option<V>>,
) -> Result<Vec<V>> {
    let images = Images::build()?;
    let symbols = images.guest_symbols()?;
    let machine = Machine::on_monitor(&images, &boot.monitor_options, &boot.command_line);
    let outcome = machine.run(|_| {})?;
    let (mut verdicts, mut wrong) = (Vec::new(), Vec::new());
    for run in &outcome.transcript.runs {
        match check(run, &outcome.truth, &symbols, &images.guest) {
            Ok(Some(verdict)) => {
                println!("{label} {}: {verdict}", run.name);
                verdicts.push(verdict);
            }
            Ok(None) => println!("{label} {}: {}", run.name, run.refusal.as_deref().unwrap_or_default()),
            Err(error) => wrong.push(format!("{label} {}: {error:#}", run.name)),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let due = only.map_or(WORKLOADS.len(), |only| only.split(',').count());
    let runs = outcome.transcript.runs.len();
    ensure!(runs == due, "{label}: {runs} workloads ran instead of {due}");
    Ok(verdicts)
}

/// Makes one test for each profile. The test has the profile's name and passes it to the function `$on`.
#[macro_export]
macro_rules! test_on_each {
    ($on:ident: $($profile:ident)+) => {
        $(
            #[test]
            fn $profile() {
                $on(stringify!($profile));
            }
        )+
    };
}
