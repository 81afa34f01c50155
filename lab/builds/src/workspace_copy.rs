//! A copy of the tree, in which sources can be changed and tests built.

use anyhow::{Context, Result, ensure};
use pugmark_harness::images::{target_folder, workspace};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The parts of the target folder that a copy starts with. The parts for incremental compilation are useless in
/// another folder.
const SEED: [&str; 4] = [".rustc_info.json", "debug/deps", "debug/build", "debug/.fingerprint"];

/// The text of files whose build depends on their folder. Cargo does not notice that the folder has changed.
const NAMES_ITS_FOLDER: &str = "CARGO_MANIFEST_DIR";

/// A copy of the tree, with its own target folder.
pub struct WorkspaceCopy {
    tree: PathBuf,
    target: PathBuf,
}

impl WorkspaceCopy {
    /// Updates the copy in `folder`, or makes it if it does not exist, with these files added or in place of the
    /// tree's.
    ///
    /// # Errors
    /// If the tree is no clone, or a file cannot be copied.
    pub fn with_texts(folder: &Path, texts: &BTreeMap<PathBuf, String>) -> Result<Self> {
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
        Ok(Self { tree, target })
    }

    /// Returns the folder of the copy's files.
    #[must_use]
    pub fn tree(&self) -> &Path {
        &self.tree
    }

    /// Makes a command of cargo in the copy, with the copy's target folder.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

/// Locks the copies until the file is dropped.
///
/// # Errors
/// If the file cannot be made or locked.
pub fn lock(folder: &Path) -> Result<File> {
    std::fs::create_dir_all(folder)?;
    let file = File::create(folder.join("lock"))?;
    if file.try_lock().is_err() {
        println!("waiting for another `cargo xtask` that breaks copies there");
        file.lock()?;
    }
    Ok(file)
}

/// Copies build products, with their time stamps.
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

/// Makes the copy equal to the files of the tree that git tracks or would track. Writes only files that differ, so that
/// cargo rebuilds nothing else.
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
        // Keep the time of the file from which the target folder's contents were built.
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

/// Returns the files that git tracks or would track, and that exist.
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
