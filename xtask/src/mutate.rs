//! `cargo xtask mutate`: does a test notice when a rule is broken?
//!
//! `xtask/mutations.toml` lists small mutations, each with the rule that it breaks and the tests that must go
//! red. They are applied one at a time to a copy of the tree, never to the tree itself.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use pugmark_qemu_tests::images::{target_folder, workspace};
use serde::Deserialize;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A test that runs longer than this hangs, which is one way of going red.
const DEADLINE: Duration = Duration::from_secs(240);

#[derive(Args)]
pub(crate) struct Options {
    /// Only mutations whose name contains this
    #[arg(default_value = "")]
    name: String,
    /// Print the names and what they break, and do nothing
    #[arg(long)]
    list: bool,
}

#[derive(Deserialize)]
struct List {
    mutation: Vec<Mutation>,
}

/// One small change that some test must notice.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutation {
    /// Its name: the kind of rule, then the rule.
    name: String,
    /// The file, from the workspace's root.
    file: PathBuf,
    /// Text that stands in the file exactly once.
    find: String,
    /// What to put in its place.
    replace: String,
    /// Arguments of `cargo test`.
    test: String,
}

/// What became of a mutation.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    TimedOut,
    Survived,
    DoesNotCompile,
}

/// Applies each mutation in turn and reports those that no test noticed.
pub(crate) fn mutate(options: &Options) -> Result<ExitCode> {
    let list = read_list()?;
    let chosen: Vec<&Mutation> =
        list.iter().filter(|mutation| mutation.name.contains(&options.name)).collect();
    ensure!(!chosen.is_empty(), "no mutation's name contains {:?}", options.name);
    if options.list {
        chosen.iter().for_each(|mutation| println!("{} ({})", mutation.name, mutation.file.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let copy = Copy::new()?;
    let mut survivors = 0;
    for (index, mutation) in chosen.iter().enumerate() {
        let fate = copy.try_out(mutation).with_context(|| mutation.name.clone())?;
        println!("[{}/{}] {}: {fate:?}", index + 1, chosen.len(), mutation.name);
        survivors += u64::from(!matches!(fate, Fate::Killed | Fate::TimedOut));
    }
    println!("{} passed, {survivors} failed", chosen.len() as u64 - survivors);
    Ok(if survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_list() -> Result<Vec<Mutation>> {
    let file = workspace().join("xtask/mutations.toml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let list: List = toml::from_str(&text).with_context(|| format!("in {}", file.display()))?;
    Ok(list.mutation)
}

impl Mutation {
    /// The file's text with the mutation in it.
    fn apply(&self, text: &str) -> Result<String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            count => bail!("{:?} stands {count} times in {}", self.find, self.file.display()),
        }
    }
}

/// A copy of the tree, to be broken.
struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn new() -> Result<Self> {
        let folder = target_folder().join("mutate");
        let copy = Self { root: folder.join("tree"), target: folder.join("target") };
        if copy.root.exists() {
            std::fs::remove_dir_all(&copy.root)?;
        }
        for file in tracked_files()? {
            let to = copy.root.join(&file);
            std::fs::create_dir_all(to.parent().context("a file without a folder")?)?;
            std::fs::copy(workspace().join(&file), to)
                .with_context(|| format!("cannot copy {}", file.display()))?;
        }
        Ok(copy)
    }

    fn try_out(&self, mutation: &Mutation) -> Result<Fate> {
        let file = self.root.join(&mutation.file);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", mutation.file.display()))?;
        std::fs::write(&file, mutation.apply(&text)?)?;
        let fate = self.test(mutation);
        std::fs::write(&file, text)?;
        fate
    }

    fn test(&self, mutation: &Mutation) -> Result<Fate> {
        let arguments: Vec<&str> = mutation.test.split_whitespace().collect();
        let (cargo_part, _) =
            arguments.split_at(arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len()));
        let mut build = self.cargo(cargo_part);
        if !build.arg("--no-run").status()?.success() {
            return Ok(Fate::DoesNotCompile);
        }
        let mut test = self.cargo(&arguments).spawn()?;
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end {
            if let Some(status) = test.try_wait()? {
                return Ok(if status.success() { Fate::Survived } else { Fate::Killed });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        end_group(&test)?;
        test.wait()?;
        Ok(Fate::TimedOut)
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .args(["test", "--quiet"])
            .args(arguments)
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            // Nobody debugs what is built here, and without it a mutation takes half the time.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

/// Ends cargo and the test binary that it started, which would go on without it.
fn end_group(leader: &Child) -> Result<()> {
    let group = format!("-{}", leader.id());
    let status = Command::new("kill").args(["-KILL", "--", &group]).status().context("cannot start kill")?;
    ensure!(status.success(), "cannot end the process group {group}");
    Ok(())
}

fn tracked_files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(workspace()).output()?;
    ensure!(
        output.status.success(),
        "`git ls-files` failed: mutations are tried on a copy of what git tracks"
    );
    let names = String::from_utf8(output.stdout)?;
    Ok(names.split_terminator('\0').map(Path::new).map(Path::to_path_buf).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_mutation_applies_in_exactly_one_place_and_changes_something() {
        let mut names = HashSet::new();
        for mutation in read_list().unwrap() {
            let text = std::fs::read_to_string(workspace().join(&mutation.file)).unwrap();
            let mutated = mutation.apply(&text).unwrap_or_else(|error| panic!("{}: {error}", mutation.name));
            assert_ne!(mutated, text, "{}", mutation.name);
            assert!(names.insert(mutation.name.clone()), "{} is there twice", mutation.name);
        }
    }

    #[test]
    fn refuses_a_mutation_that_is_ambiguous() {
        let mutation = Mutation {
            name: "x".into(),
            file: "f".into(),
            find: "a".into(),
            replace: "b".into(),
            test: String::new(),
        };
        assert_eq!(mutation.apply("-a-").unwrap(), "-b-");
        assert!(mutation.apply("-a-a-").is_err());
        assert!(mutation.apply("--").is_err());
    }
}
