//! `cargo xtask mutate`: checks that a test notices when a rule is broken.
//!
//! `xtask/mutations.toml` lists small mutations, each with the rule that it breaks and the tests that must fail. They
//! are applied to copies of the tree, never to the tree itself: if there are many, first as many with one build as can
//! be ([`shared_build`]), then those that no test has noticed so, one at a time. Each test command first runs without a
//! mutation, because a test that fails anyway notices nothing.

mod changed;
mod list;
mod shared_build;

use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_qemu_tests::images::target_folder;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::parallel::run_in_parallel;
use crate::workspace_copy::{TestRun, WorkspaceCopy, lock};
use list::Mutation;

pub(crate) use changed::commit_before;
use changed::default_base;

/// How many mutations are worth a build of all together.
const FEWEST_TOGETHER: usize = 12;
/// How long tests may take without a mutation.
const BASELINE_DEADLINE: Duration = Duration::from_secs(1200);
/// How long tests may take with a mutation, unless [`SLOWDOWN_ALLOWED`] gives more: other work may slow them down.
const DEADLINE: Duration = Duration::from_secs(120);
/// How many times as long as without a mutation tests may take with one.
const SLOWDOWN_ALLOWED: u32 = 8;

#[derive(Args, Default)]
pub(crate) struct MutateOptions {
    /// Only mutations whose name contains this
    #[arg(default_value = "")]
    pub(crate) name: String,
    /// Only the mutation with this name and those after it in the list
    #[arg(long, value_name = "NAME")]
    pub(crate) from: Option<String>,
    /// Only mutations whose file or test differs from this commit, without one from where the branch left origin/main
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, require_equals = true)]
    pub(crate) changed: Option<Option<String>>,
    /// Begin no mutation after MINUTES minutes, and say how many are left
    #[arg(long, value_name = "MINUTES")]
    pub(crate) within: Option<u64>,
    /// Print the names and what they break, and do nothing
    #[arg(long)]
    pub(crate) list: bool,
}

/// The result for a mutation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MutationFate {
    /// This test failed.
    Killed(String),
    /// All tests passed.
    Survived,
    /// The tests did not end, so it is unknown whether they would have noticed.
    TimedOut,
    /// The code does not compile, so nothing can be tested.
    DoesNotCompile,
    /// The tests fail without the mutation; the reason.
    Untried(String),
    /// There was no time for it.
    NoTimeLeft,
}

impl MutationFate {
    /// The heading under which it is counted in the summary.
    const fn heading(&self) -> &'static str {
        match self {
            Self::Killed(_) => "killed",
            Self::Survived => "survived",
            Self::TimedOut => "timed out",
            Self::DoesNotCompile => "does not compile",
            Self::Untried(_) => "untried (the tests are not green without it)",
            Self::NoTimeLeft => "left",
        }
    }

    const fn is_wrong(&self) -> bool {
        !matches!(self, Self::Killed(_) | Self::NoTimeLeft)
    }
}

/// Applies each mutation and reports those that no test noticed.
pub(crate) fn mutate(options: &MutateOptions) -> Result<ExitCode> {
    let list = list::read()?;
    let mut chosen = choose(&list, &options.name, options.from.as_deref())?;
    if let Some(base) = &options.changed {
        let base = base.clone().map_or_else(default_base, Ok)?;
        let diff = changed::ChangedFiles::since(&base)?;
        chosen.retain(|mutation| diff.touches(mutation));
        println!("{} of {} mutations are touched since {base}", chosen.len(), list.len());
    }
    if options.list {
        chosen.iter().for_each(|mutation| println!("{} ({})", mutation.name, mutation.file.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let folder = target_folder().join("mutate");
    let _alone = lock(&folder)?;
    let end = options.within.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut noticed = HashMap::new();
    if chosen.len() >= FEWEST_TOGETHER {
        let mut count = 0;
        noticed =
            shared_build::noticed_together(&folder.join("shared-build"), &chosen, end, |mutation, test| {
                count += 1;
                println!(
                    "[{count}/{}] {}: {:?}",
                    chosen.len(),
                    mutation.name,
                    MutationFate::Killed(test.into())
                );
            })?;
    }
    let rest: Vec<_> = chosen.iter().filter(|mutation| !noticed.contains_key(&mutation.name)).collect();
    let trial = MutationTrial::new(&folder, &chosen, end);
    let numbered: Vec<_> = rest.iter().zip(noticed.len() + 1..).collect();
    let fates = run_in_parallel(
        &numbered,
        |&(mutation, number), print| {
            let fate = trial.fate(mutation).with_context(|| mutation.name.clone());
            if let Ok(fate) = &fate {
                print(format!("[{number}/{}] {}: {fate:?}", chosen.len(), mutation.name));
            }
            fate
        },
        |line| println!("{line}"),
    );
    let mut fates = fates.into_iter().collect::<Result<Vec<_>>>()?.into_iter();
    let fates = chosen.iter().map(|mutation| match noticed.get(&mutation.name) {
        Some(test) => Some(MutationFate::Killed(test.clone())),
        None => fates.next(),
    });
    Ok(summary(&chosen, &fates.collect::<Option<Vec<_>>>().context("a mutation has no fate")?))
}

/// The mutations whose name contains `part`, from the one named `first` on.
fn choose<'a>(list: &'a [Mutation], part: &str, first: Option<&str>) -> Result<Vec<&'a Mutation>> {
    let before = match first {
        None => 0,
        Some(first) => list
            .iter()
            .position(|mutation| mutation.name == first)
            .with_context(|| format!("no mutation is named {first:?}"))?,
    };
    let chosen: Vec<_> = list.iter().skip(before).filter(|mutation| mutation.name.contains(part)).collect();
    ensure!(!chosen.is_empty(), "no mutation's name contains {part:?}");
    Ok(chosen)
}

/// Prints what went wrong again, and how often each fate occurred.
fn summary(chosen: &[&Mutation], fates: &[MutationFate]) -> ExitCode {
    let mut counts = BTreeMap::<_, usize>::new();
    for (mutation, fate) in chosen.iter().zip(fates) {
        *counts.entry(fate.heading()).or_default() += 1;
        if fate.is_wrong() {
            println!("{}: {}", fate.heading(), mutation.name);
        }
    }
    let counts: Vec<_> = counts.iter().map(|(heading, count)| format!("{count} {heading}")).collect();
    println!("mutations: {}", if counts.is_empty() { "none".into() } else { counts.join(", ") });
    if fates.iter().any(MutationFate::is_wrong) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// How long tests take without a mutation, or why they fail.
type Baseline = Result<Duration, String>;

/// What all mutations share.
struct MutationTrial<'a> {
    folder: &'a Path,
    /// Copies that are not in use; if there is none, a new one is made.
    copies: Mutex<(Vec<WorkspaceCopy>, usize)>,
    baselines: BTreeMap<&'a str, OnceLock<Baseline>>,
    end: Option<Instant>,
}

impl<'a> MutationTrial<'a> {
    fn new(folder: &'a Path, chosen: &[&'a Mutation], end: Option<Instant>) -> Self {
        let baselines = chosen.iter().map(|mutation| (mutation.test.as_str(), OnceLock::new())).collect();
        Self { folder, copies: Mutex::default(), baselines, end }
    }

    fn fate(&self, mutation: &Mutation) -> Result<MutationFate> {
        if self.end.is_some_and(|end| end < Instant::now()) {
            return Ok(MutationFate::NoTimeLeft);
        }
        let copy = self.take_copy()?;
        let fate = self.fate_in(&copy, mutation);
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).0.push(copy);
        fate
    }

    fn fate_in(&self, copy: &WorkspaceCopy, mutation: &Mutation) -> Result<MutationFate> {
        let baseline = self.baselines[mutation.test.as_str()].get_or_init(|| baseline(copy, &mutation.test));
        let time = match baseline {
            Ok(time) => *time,
            Err(reason) => return Ok(MutationFate::Untried(reason.clone())),
        };
        let ran = copy.with(
            &mutation.file,
            |text| mutation.apply(text),
            || copy.test(&mutation.test, DEADLINE.max(time.saturating_mul(SLOWDOWN_ALLOWED))),
        )?;
        Ok(match ran {
            TestRun::Green { .. } => MutationFate::Survived,
            TestRun::Red(test) => MutationFate::Killed(test),
            TestRun::TimedOut => MutationFate::TimedOut,
            TestRun::DoesNotCompile(_) => MutationFate::DoesNotCompile,
        })
    }

    fn take_copy(&self) -> Result<WorkspaceCopy> {
        let number = {
            let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(copy) = copies.0.pop() {
                return Ok(copy);
            }
            copies.1 += 1;
            copies.1
        };
        WorkspaceCopy::new(&self.folder.join(number.to_string()))
    }
}

/// Runs tests without a mutation.
fn baseline(copy: &WorkspaceCopy, test: &str) -> Baseline {
    let why = |what: &str| Err(format!("`cargo test {test}` {what} without a mutation"));
    match copy.test(test, BASELINE_DEADLINE) {
        Ok(TestRun::Green { tests: 0, .. }) => why("runs no test"),
        Ok(TestRun::Green { took, .. }) => Ok(took),
        Ok(TestRun::Red(name)) => why(&format!("is red ({name})")),
        Ok(TestRun::TimedOut) => why("does not end"),
        Ok(TestRun::DoesNotCompile(error)) => why(&format!("does not compile ({error})")),
        Err(error) => Err(format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_chosen_by_a_part_of_their_name_and_by_where_the_list_is_entered() {
        let named = |name: &str| Mutation {
            name: name.into(),
            file: "f".into(),
            find: "x".into(),
            replace: "y".into(),
            test: String::new(),
        };
        let list = ["a/1", "b/1", "a/2", "b/2"].map(named);
        let chosen = |part, first| {
            choose(&list, part, first)
                .ok()
                .map(|all| all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(chosen("a/", None), Some(vec!["a/1", "a/2"]));
        assert_eq!(chosen("", Some("a/2")), Some(vec!["a/2", "b/2"]));
        assert_eq!(chosen("a/", Some("b/1")), Some(vec!["a/2"]));
        assert_eq!(chosen("", Some("a/")), None, "a part is no name");
        assert_eq!(chosen("a/", Some("b/2")), None);
    }

    #[test]
    fn only_what_a_test_noticed_counts_as_such() {
        let wrong = [
            MutationFate::Survived,
            MutationFate::TimedOut,
            MutationFate::DoesNotCompile,
            MutationFate::Untried("`cargo test --lib` is red without a mutation".into()),
        ];
        assert!(wrong.iter().all(MutationFate::is_wrong));
        assert!(
            ![MutationFate::Killed("notices".into()), MutationFate::NoTimeLeft]
                .iter()
                .any(MutationFate::is_wrong)
        );
    }
}
