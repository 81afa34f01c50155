//! Runs many workloads with one source on one profile, and judges each of them.

use anyhow::{Result, ensure};
use std::collections::HashMap;

use crate::boots::{self, boots};
use crate::expected::check;
use crate::images::Images;
use crate::judge::{Evidence, Source, Verdict};
use crate::machine::{Machine, Outcome};
use crate::workloads::{self, WORKLOADS};

/// The workloads to run.
#[derive(Clone, Debug)]
pub struct Sweep<'a> {
    source: Source,
    profile: &'a str,
    only: Option<&'a str>,
    monitor_options: String,
    guest_words: String,
    processors: u16,
}

impl<'a> Sweep<'a> {
    /// Returns all workloads with a source on a profile.
    #[must_use]
    pub const fn new(source: Source, profile: &'a str) -> Self {
        Self {
            source,
            profile,
            only: None,
            monitor_options: String::new(),
            guest_words: String::new(),
            processors: 1,
        }
    }

    /// Runs only these workloads, separated by commas.
    #[must_use]
    pub fn only(mut self, only: &'a str) -> Self {
        self.only = Some(only);
        self
    }

    /// Adds monitor options.
    #[must_use]
    pub fn monitor_options(mut self, options: &str) -> Self {
        self.monitor_options = format!(" {options}");
        self
    }

    /// Adds words to the guest's command line.
    #[must_use]
    pub fn guest_words(mut self, words: &str) -> Self {
        self.guest_words = format!(" {words}");
        self
    }

    /// Sets the machine's number of processors; the kernel uses all.
    #[must_use]
    pub fn processors(mut self, processors: u16) -> Self {
        self.processors = processors;
        self
    }

    /// Boots our kernel, checks each run against the table of expectations, prints and returns the verdicts.
    ///
    /// # Errors
    /// If a machine did not end well, a workload is missing, or a run failed its check. The error names every run that
    /// failed.
    pub fn run(&self) -> Result<Vec<Verdict>> {
        let images = Images::build()?;
        let symbols = images.guest_symbols()?;
        let label = format!("{} {}{}", self.source.word(), self.profile, self.monitor_options);
        let (mut verdicts, mut wrong, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        for boot in boots(self.source, self.profile, self.only) {
            let options = format!("{}{}", boot.monitor_options, self.monitor_options);
            let processors = boots::processors(self.processors);
            let command_line = format!("{}{}{processors}", boot.command_line, self.guest_words);
            let machine = Machine::on_monitor(&images, &options, &command_line).processors(self.processors);
            let outcome = machine.run(|_| {})?;
            runs.extend(outcome.transcript.runs.iter().map(|run| run.name.clone()));
            wrong.extend(
                shared_processor(&outcome, self.processors).err().map(|error| format!("{label}: {error:#}")),
            );
            for run in &outcome.transcript.runs {
                let (truth, symbols, image) = (&outcome.truth, &symbols, &*images.guest);
                match check(self.source, self.profile, &Evidence { run, truth, symbols, image }) {
                    Ok(Some(verdict)) => {
                        println!("{label} {}: {verdict}", run.name);
                        verdicts.push(verdict);
                    }
                    Ok(None) => {
                        println!("{label} {}: {}", run.name, run.refusal.as_deref().unwrap_or_default())
                    }
                    Err(error) => wrong.push(format!("{label} {}: {error:#}", run.name)),
                }
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        let all = WORKLOADS.iter().map(|workload| workload.name);
        let named = |only: &'a str| all.clone().filter(move |name| only.split(',').any(|only| only == *name));
        let names: Vec<&str> = self.only.map_or_else(|| all.clone().collect(), |only| named(only).collect());
        let mut expected: Vec<String> =
            names.into_iter().flat_map(|name| workloads::runs_of(name, self.processors)).collect();
        // A separate boot comes last.
        runs.sort_unstable();
        expected.sort_unstable();
        ensure!(runs == expected, "{label}: {runs:?} ran instead of {expected:?}");
        Ok(verdicts)
    }
}

/// Checks that each run was on a processor of its own: the first one's session on the first, and so on.
///
/// # Errors
/// If two processors are in one session, or one processor has run for another one.
fn shared_processor(outcome: &Outcome, processors: u16) -> Result<()> {
    let mut seen: HashMap<&str, Vec<u16>> = HashMap::new();
    for run in &outcome.transcript.runs {
        let records = run.session.map_or(&[][..], |session| outcome.truth.session(session));
        let Some(first) = records.first() else { continue };
        ensure!(records.iter().all(|record| record.cpu == first.cpu), "{}: on two processors", run.name);
        let cpus = seen.entry(workloads::of_run(&run.name)).or_default();
        ensure!(
            first.cpu < processors && !cpus.contains(&first.cpu),
            "{}: not on its own processor",
            run.name
        );
        cpus.push(first.cpu);
    }
    Ok(())
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
