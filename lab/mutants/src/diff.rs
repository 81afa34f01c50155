//! Finds the lines that differ from a commit.

use anyhow::{Context, Result, bail, ensure};
use pugmark_harness::images::workspace;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::SourceFile;
use super::sites::position;

/// The lines of the working tree's files that a commit does not have, numbered from 1.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChangedLines(BTreeMap<PathBuf, Vec<Range<usize>>>);

impl ChangedLines {
    /// Compares the working tree with a commit.
    pub(super) fn since(base: &str) -> Result<Self> {
        let options = ["--unified=0", "--no-renames", "--no-color", "--no-ext-diff", "--dst-prefix=b/"];
        Self::parse(&git(&[&["diff"], &options[..], &[base, "--", "*.rs"]].concat())?)
    }

    /// Reads a diff without context.
    fn parse(diff: &str) -> Result<Self> {
        let (mut files, mut file) = (BTreeMap::<_, Vec<_>>::new(), None);
        let mut lines = diff.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("+++ ") {
                // `/dev/null` stands for a file that was removed.
                file = name.strip_prefix("b/").map(PathBuf::from);
            } else if line.starts_with("@@ ") {
                let (removed, added) =
                    hunk(line).with_context(|| format!("git's diff has the line {line:?}"))?;
                if let (Some(file), false) = (&file, added.is_empty()) {
                    files.entry(file.clone()).or_default().push(added.clone());
                }
                // The lines of a hunk may look like any other.
                lines.by_ref().take(removed.len() + added.len()).for_each(drop);
            }
        }
        Ok(Self(files))
    }

    /// Returns whether a file has changed lines.
    pub(super) fn are_in(&self, file: &Path) -> bool {
        self.0.contains_key(file)
    }

    /// Leaves out the mutants of a file that begin on other lines.
    pub(super) fn retain_in(&self, source: &mut SourceFile) {
        let lines = self.0.get(&source.path).map_or(&[][..], Vec::as_slice);
        let SourceFile { text, sites, .. } = source;
        for site in &mut *sites {
            site.mutants.retain(|change| {
                let (line, _) = position(text, change.offset);
                lines.iter().any(|lines| lines.contains(&line))
            });
        }
        sites.retain(|site| !site.mutants.is_empty());
    }
}

/// Returns the lines that a hunk removes and those that it adds, from its heading, such as `@@ -3,2 +4 @@ fn f`.
fn hunk(heading: &str) -> Option<(Range<usize>, Range<usize>)> {
    let mut words = heading.split(' ').skip(1);
    let mut lines = |sign| {
        let word = words.next()?.strip_prefix(sign)?;
        let (first, count) = word.split_once(',').unwrap_or((word, "1"));
        let first: usize = first.parse().ok()?;
        Some(first..first.checked_add(count.parse().ok()?)?)
    };
    Some((lines('-')?, lines('+')?))
}

/// Returns the default commit to compare with: the one where the branch left `origin/main`, or on that branch itself
/// the commit before.
pub(super) fn default_base() -> Result<String> {
    let head = git(&["rev-parse", "HEAD"])?;
    match git(&["merge-base", "HEAD", "origin/main"]) {
        Ok(left) if left != head => Ok(left.trim().into()),
        _ => commit_before(),
    }
}

/// Returns the commit before this one.
///
/// # Errors
///
/// There is no such commit: the tree is no clone, or a shallow one.
pub fn commit_before() -> Result<String> {
    git(&["rev-parse", "--verify", "--quiet", "HEAD~1"])
        .map(|commit| commit.trim().into())
        .context("there is no commit to compare with: not a clone, or a shallow one")
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(workspace()).output();
    let output = output.context("cannot start git")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("`git {}` failed: {}", arguments.join(" "), error.trim());
    }
    ensure!(std::str::from_utf8(&output.stdout).is_ok(), "a changed file is not text");
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites;

    const DIFF: &str = "\
diff --git a/a/old.rs b/a/old.rs
deleted file mode 100644
--- a/a/old.rs
+++ /dev/null
@@ -1,2 +0,0 @@
-fn f() {}
-@@ -1 +1 @@
diff --git a/a/new.rs b/a/new.rs
--- a/a/new.rs
+++ b/a/new.rs
@@ -2 +2 @@ fn f
-    a
+    b
@@ -7,2 +7,0 @@ fn g
-x
-y
@@ -20,0 +18,3 @@ fn h
+1
+++ b/a/other.rs
+3
";

    #[test]
    fn added_lines_are_read_and_removed_ones_are_not() {
        let lines = ChangedLines::parse(DIFF).unwrap();
        assert_eq!(lines, ChangedLines([("a/new.rs".into(), vec![2..3, 18..21])].into()));
        assert!(lines.are_in(Path::new("a/new.rs")) && !lines.are_in(Path::new("a/old.rs")));
        assert!(ChangedLines::parse("+++ b/a.rs\n@@ -1 +x @@\n").is_err());
    }

    #[test]
    fn mutants_of_other_lines_are_left_out() {
        let text = "fn f() -> A {\n    a + b\n}\nfn g() -> A {\n    c - d\n}\n";
        let mut source = SourceFile {
            path: "a.rs".into(),
            text: text.into(),
            sites: sites::find(text).unwrap(),
            first: 0,
        };
        assert_eq!(source.sites.len(), 2);
        let lines = ChangedLines::parse("+++ b/a.rs\n@@ -5 +5 @@\n-x\n+y\n").unwrap();
        lines.retain_in(&mut source);
        let [site] = &*source.sites else { panic!("{:?}", source.sites) };
        assert_eq!((site.function.as_str(), site.mutants.len()), ("g", 1));
        ChangedLines::default().retain_in(&mut source);
        assert_eq!(source.sites, []);
    }
}
