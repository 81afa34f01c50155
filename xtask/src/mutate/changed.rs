//! Finds the mutations that a diff touches.

use anyhow::{Context, Result, ensure};
use pugmark_qemu_tests::images::workspace;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::list::{self, Mutation};

/// The folders of packages whose folder has another name.
const FOLDERS: [(&str, &str); 6] = [
    ("pugmark-model", "virt/model"),
    ("pugmark-monitor", "virt/monitor"),
    ("pugmark-program", "virt/program"),
    ("pugmark-protocol", "virt/protocol"),
    ("pugmark-truth", "virt/truth"),
    ("pugmark-fuzz", "fuzz"),
];

/// The differences from a commit.
pub(crate) struct ChangedFiles {
    /// The changed files, relative to the workspace's root.
    files: Vec<PathBuf>,
    /// The commit's list of mutations, by name.
    listed: HashMap<String, Mutation>,
}

impl ChangedFiles {
    /// The differences between this commit and the working tree.
    pub(crate) fn since(base: &str) -> Result<Self> {
        let names = git(&["diff", "--name-only", "--no-renames", "-z", base, "--"])?;
        let files = names.split_terminator('\0').map(PathBuf::from).collect();
        // A commit without a list, or with a list of another form, counts as having no mutations.
        let listed = git(&["show", &format!("{base}:{}", list::FILE)]).and_then(|text| list::parse(&text));
        let by_name = |mutation: Mutation| (mutation.name.clone(), mutation);
        Ok(Self { files, listed: listed.unwrap_or_default().into_iter().map(by_name).collect() })
    }

    /// Whether the mutation's entry, its file, or the tests that must notice it have changed.
    pub(crate) fn touches(&self, mutation: &Mutation) -> bool {
        self.listed.get(&mutation.name) != Some(mutation)
            || self.files.iter().any(|file| *file == mutation.file || is_test_of(file, mutation))
    }
}

/// Whether a file has tests that the mutation names: those of an integration test, or the unit tests of the mutation's
/// module.
fn is_test_of(file: &Path, mutation: &Mutation) -> bool {
    let words: Vec<&str> = mutation.test.split_whitespace().take_while(|word| *word != "--").collect();
    let value = |option: &str| words.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1]);
    let of_a_test = || {
        let (package, test) = (value("-p")?, value("--test")?);
        let tests = folder_of(package)?.join("tests");
        Some(file == tests.join(format!("{test}.rs")) || file.starts_with(tests.join(test)))
    };
    let of_the_module = || {
        let (folder, module) = (mutation.file.parent()?, mutation.file.with_extension(""));
        let tests = [folder, &module].map(|folder| folder.join("tests"));
        Some(tests.iter().any(|tests| file == tests.with_extension("rs") || file.starts_with(tests)))
    };
    of_a_test() == Some(true) || of_the_module() == Some(true)
}

/// The folder of a package, relative to the workspace's root.
pub(super) fn folder_of(package: &str) -> Option<&Path> {
    let folder = FOLDERS.iter().find(|(name, _)| *name == package).map(|(_, folder)| *folder);
    folder.or(package.strip_prefix("pugmark-")).map(Path::new)
}

/// The commit to compare with if none is given: the one where the branch left origin/main, or on main itself the
/// commit before.
pub(crate) fn default_base() -> Result<String> {
    let head = git(&["rev-parse", "HEAD"])?;
    let left = ["origin/main", "main"].iter().find_map(|main| git(&["merge-base", "HEAD", main]).ok());
    match left {
        Some(left) if left != head => Ok(left.trim().into()),
        _ => commit_before(),
    }
}

/// The commit before this one.
pub(crate) fn commit_before() -> Result<String> {
    git(&["rev-parse", "--verify", "--quiet", "HEAD~1"])
        .map(|commit| commit.trim().into())
        .context("there is no commit to compare with: not a clone, or a shallow one")
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(workspace()).output();
    let output = output.context("cannot start git")?;
    ensure!(
        output.status.success(),
        "`git {}` failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutation(file: &str, test: &str) -> Mutation {
        Mutation {
            name: "a".into(),
            file: file.into(),
            find: "x".into(),
            replace: "y".into(),
            test: test.into(),
        }
    }

    #[test]
    fn a_mutation_is_touched_by_its_file_and_by_its_tests() {
        let rows = [
            (
                "kernel/src/intel/pt/session.rs",
                "-p pugmark-kernel --test pmi",
                "kernel/src/intel/pt/session.rs",
                true,
            ),
            (
                "kernel/src/intel/pt/session.rs",
                "-p pugmark-kernel --test pmi",
                "kernel/src/intel/pt/drain.rs",
                false,
            ),
            ("kernel/src/intel/pt/session.rs", "-p pugmark-kernel --test pmi", "kernel/tests/pmi.rs", true),
            (
                "kernel/src/intel/pt/session.rs",
                "-p pugmark-kernel --test pmi",
                "kernel/tests/pmi/rings.rs",
                true,
            ),
            (
                "kernel/src/intel/pt/session.rs",
                "-p pugmark-kernel --test pmi",
                "kernel/tests/pmi_other.rs",
                false,
            ),
            ("kernel/src/intel/pt/session.rs", "-p pugmark-kernel --lib", "kernel/tests/pmi.rs", false),
            (
                "kernel/src/intel/pt/session.rs",
                "-p pugmark-kernel --lib",
                "kernel/src/intel/pt/session/tests.rs",
                true,
            ),
            (
                "kernel/src/intel/pt/session.rs",
                "-p pugmark-kernel --lib",
                "kernel/src/intel/pt/tests/rings.rs",
                true,
            ),
            ("kernel/src/intel/pt/session.rs", "-p pugmark-kernel --lib", "kernel/src/amd/tests.rs", false),
            (
                "virt/model/src/psb.rs",
                "-p pugmark-model --test walk -- a --test b",
                "virt/model/tests/walk.rs",
                true,
            ),
            (
                "virt/model/src/psb.rs",
                "-p pugmark-model --test walk -- a --test b",
                "virt/model/tests/b.rs",
                false,
            ),
        ];
        for (of, test, file, touched) in rows {
            let mutation = mutation(of, test);
            let listed = [(mutation.name.clone(), mutation.clone())].into();
            let diff = ChangedFiles { files: vec![file.into()], listed };
            assert_eq!(diff.touches(&mutation), touched, "{of} {test} {file}");
        }
    }

    #[test]
    fn a_mutation_is_touched_when_it_is_new_or_another_one() {
        let (old, new) = (mutation("f.rs", "--lib"), mutation("f.rs", "--test t"));
        let diff = |listed| ChangedFiles { files: vec![], listed };
        assert!(!diff([("a".into(), old.clone())].into()).touches(&old));
        assert!(diff([("a".into(), old)].into()).touches(&new));
        assert!(diff([].into()).touches(&new));
    }

    #[test]
    fn the_folders_are_those_of_the_packages() {
        for mutation in list::read().unwrap() {
            let words: Vec<&str> = mutation.test.split_whitespace().collect();
            let package = words[words.iter().position(|word| *word == "-p").unwrap() + 1];
            let folder = folder_of(package).unwrap();
            let manifest = std::fs::read_to_string(workspace().join(folder).join("Cargo.toml")).unwrap();
            assert!(manifest.contains(&format!("name = {package:?}")), "{package}");
        }
    }
}
