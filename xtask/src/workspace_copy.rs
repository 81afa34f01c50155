//! A copy of the tree, in which `mutate` and `mutants` try what they break.

use anyhow::{Context, Result, ensure};
use pugmark_qemu_tests::images::{target_folder, workspace};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

/// The parts of the target folder that a copy starts with. The parts for incremental compilation are useless in
/// another folder.
const SEED: [&str; 12] = [
    ".rustc_info.json",
    "debug/deps",
    "debug/build",
    "debug/.fingerprint",
    "release/deps",
    "release/build",
    "release/.fingerprint",
    "monitor/deps",
    "monitor/build",
    "monitor/.fingerprint",
    "foreign-kernel",
    "example-kernels",
];

/// If a file contains this text, what was built of it depends on its folder, but cargo does not notice that the folder
/// has changed.
const NAMES_ITS_FOLDER: &str = "CARGO_MANIFEST_DIR";

/// A copy of the tree, with a target folder of its own.
pub(crate) struct WorkspaceCopy {
    tree: PathBuf,
    target: PathBuf,
    log: PathBuf,
}

/// How a run of tests ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TestRun {
    Green {
        tests: u64,
        took: Duration,
    },
    /// A test failed; its name.
    Red(String),
    TimedOut,
    /// Cargo's first error.
    DoesNotCompile(String),
}

impl WorkspaceCopy {
    /// Updates the copy in `folder`, or makes it if it does not exist.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        Self::with_texts(folder, &BTreeMap::new())
    }

    /// The same, with these files added or in place of the tree's files.
    pub(crate) fn with_texts(folder: &Path, texts: &BTreeMap<PathBuf, String>) -> Result<Self> {
        let (tree, target) = (folder.join("tree"), folder.join("target"));
        let seeded = folder.join("seeded");
        let fresh = !seeded.exists();
        if fresh {
            if folder.exists() {
                std::fs::remove_dir_all(folder)?;
            }
            seed(&target)?;
        }
        update(&tree, texts, fresh)?;
        let shared = workspace().join("../shared");
        if shared.exists() && !folder.join("shared").exists() {
            std::os::unix::fs::symlink(shared.canonicalize()?, folder.join("shared"))?;
        }
        File::create(seeded)?;
        Ok(Self { tree, target, log: folder.join("log") })
    }

    /// The folder of the copy's files.
    pub(crate) fn tree(&self) -> &Path {
        &self.tree
    }

    /// Cargo in the copy, with the copy's target folder.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        command
    }

    /// Runs `work` while a file of the copy is as `change` makes it.
    pub(crate) fn with<T>(
        &self,
        changed: &Path,
        change: impl FnOnce(&str) -> Result<String>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let file = self.tree.join(changed);
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", changed.display()))?;
        std::fs::write(&file, change(&text)?)?;
        let result = work();
        std::fs::write(&file, text)?;
        result
    }

    /// Builds and runs `cargo test` with these arguments. The deadline is for the tests alone, not for the build.
    pub(crate) fn test(&self, arguments: &str, deadline: Duration) -> Result<TestRun> {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let (for_cargo, _) =
            arguments.split_at(arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len()));
        if !self.cargo(for_cargo)?.arg("--no-run").status()?.success() {
            return Ok(TestRun::DoesNotCompile(error(&self.output()?).to_owned()));
        }
        let begin = Instant::now();
        let child = self.cargo(&arguments)?.spawn().context("cannot start cargo")?;
        let Some(passed) = ends_within(child, deadline)? else { return Ok(TestRun::TimedOut) };
        let output = self.output()?;
        Ok(if passed {
            TestRun::Green { tests: tests(&output), took: begin.elapsed() }
        } else {
            TestRun::Red(failure(&output).unwrap_or("no test's name").to_owned())
        })
    }

    /// The output of cargo and of the tests.
    fn output(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }

    fn cargo(&self, arguments: &[&str]) -> Result<Command> {
        let log = File::create(&self.log)?;
        let mut command = self.command();
        command
            .args(["test", "--quiet", "--locked"])
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }
}

/// Locks the copies until the file is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    std::fs::create_dir_all(folder)?;
    let file = File::create(folder.join("lock"))?;
    if file.try_lock().is_err() {
        println!("waiting for another `cargo xtask` that breaks copies there");
        file.lock()?;
    }
    Ok(file)
}

/// Returns whether the child, which leads a process group, succeeds; `None` if the group was killed because it took
/// too long.
fn ends_within(mut child: Child, deadline: Duration) -> Result<Option<bool>> {
    let (group, (sender, receiver)) = (format!("-{}", child.id()), channel());
    // The message cannot be sent only if there was an error already.
    let waiter = std::thread::spawn(move || drop(sender.send(child.wait())));
    let status = match receiver.recv_timeout(deadline) {
        Ok(status) => Some(status?.success()),
        Err(RecvTimeoutError::Disconnected) => anyhow::bail!("nobody waits for the tests"),
        Err(RecvTimeoutError::Timeout) => {
            // Kill the whole group: otherwise the test binary that cargo started would go on.
            let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
            ensure!(killed.context("cannot start kill")?.success(), "cannot end the process group {group}");
            None
        }
    };
    waiter.join().map_err(|_| anyhow::anyhow!("nobody waits for the tests"))?;
    Ok(status)
}

/// The first error of a build.
fn error(output: &str) -> &str {
    output.lines().find(|line| line.starts_with("error")).unwrap_or("no error's text")
}

/// How many tests ran, by the lines `running 3 tests` of their binaries.
pub(crate) fn tests(output: &str) -> u64 {
    let number = |line: &str| line.strip_prefix("running ")?.split(' ').next()?.parse::<u64>().ok();
    output.lines().filter_map(number).sum()
}

/// The first failed test that a binary names.
fn failure(output: &str) -> Option<&str> {
    // There are two such lists; the first one contains the tests' output.
    let (_, names) = output.rsplit_once("\nfailures:\n")?;
    names.lines().next().map(str::trim)
}

/// Copies what was built already, with its time stamps.
fn seed(target: &Path) -> Result<()> {
    println!("a copy of the target folder: {}", target.display());
    for part in SEED {
        let (from, to) = (target_folder().join(part), target.join(part));
        if from.exists() {
            std::fs::create_dir_all(
                to.parent().with_context(|| format!("{} is in no folder", to.display()))?,
            )?;
            let status = Command::new("cp").arg("-a").arg(&from).arg(&to).status();
            ensure!(status.context("cannot start cp")?.success(), "cannot copy {}", from.display());
        }
    }
    Ok(())
}

/// Makes the copy equal to the files here that git tracks or would track. Writes only files that differ, so that cargo
/// rebuilds nothing else.
fn update(tree: &Path, texts: &BTreeMap<PathBuf, String>, fresh: bool) -> Result<()> {
    let mut tracked = tracked_files()?;
    tracked.extend(texts.keys().cloned());
    for file in &tracked {
        let (from, to) = (workspace().join(file), tree.join(file));
        let text = match texts.get(file) {
            Some(text) => text.clone().into_bytes(),
            None => std::fs::read(&from).with_context(|| format!("cannot read {}", file.display()))?,
        };
        if std::fs::read(&to).is_ok_and(|old| old == text) {
            continue;
        }
        std::fs::create_dir_all(to.parent().with_context(|| format!("{} is in no folder", to.display()))?)?;
        std::fs::write(&to, &text)?;
        let names_its_folder =
            text.windows(NAMES_ITS_FOLDER.len()).any(|part| part == NAMES_ITS_FOLDER.as_bytes());
        // The same time as that of the file from which the target folder's contents were built.
        let as_it_is = fresh && !names_its_folder && !texts.contains_key(file);
        let time = if as_it_is { from.metadata()?.modified()? } else { SystemTime::now() };
        File::options().write(true).open(&to)?.set_modified(time)?;
    }
    remove_all_but(tree, Path::new(""), &tracked)
}

/// Removes files of the tree that are not tracked.
fn remove_all_but(tree: &Path, folder: &Path, tracked: &HashSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(tree.join(folder))? {
        let entry = entry?;
        let file = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_all_but(tree, &file, tracked)?;
        } else if !tracked.contains(&file) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The files that git tracks or would track, and that exist.
fn tracked_files() -> Result<HashSet<PathBuf>> {
    let listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(listed).current_dir(workspace()).output()?;
    ensure!(
        output.status.success(),
        "`git ls-files` failed: mutations are tried on a copy of the files that git tracks, so this must be a clone"
    );
    let names = String::from_utf8(output.stdout)?;
    Ok(names
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|file| workspace().join(file).exists())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).process_group(0).spawn().unwrap()
    }

    #[test]
    fn tests_that_do_not_end_are_ended_and_not_taken_for_red_ones() {
        let long = Duration::from_secs(600);
        assert_eq!(ends_within(shell("exit 0"), long).unwrap(), Some(true));
        assert_eq!(ends_within(shell("exit 101"), long).unwrap(), Some(false));
        let begin = Instant::now();
        assert_eq!(ends_within(shell("sleep 600 & wait"), Duration::from_millis(1)).unwrap(), None);
        assert!(begin.elapsed() < long);
    }

    #[test]
    fn what_the_binaries_say_is_read() {
        let green = "\nrunning 3 tests\n...\ntest result: ok.\n\n\nrunning 1 test\n.\n";
        assert_eq!((tests(green), failure(green)), (4, None));
        let red = "\nrunning 2 tests\n.F\nfailures:\n\n---- a::notices stdout ----\nrunning late\n\n\n\
                   failures:\n    a::notices\n    b\n\ntest result: FAILED. 1 passed\n";
        assert_eq!((tests(red), failure(red)), (2, Some("a::notices")));
        assert_eq!(tests("running 0 tests\n"), 0);
    }
}
