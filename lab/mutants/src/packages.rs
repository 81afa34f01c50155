//! Finds the packages to change, and the tests that may notice a change.

use anyhow::{Context, Result, bail, ensure};
use pugmark_builds::cargo::command;
use pugmark_harness::images::workspace;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Packages whose tests cannot be built here: the support crate needs std.
const WITHOUT_TESTS: [&str; 2] = ["pugmark-boot", "pugmark-xtask"];
/// Packages of which only the library's tests are used: the others boot machines.
const LIBRARY_ONLY: [&str; 2] = ["pugmark-harness", "pugmark-monitor"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<PackageTarget>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `None` for a normal dependency, `dev` for one that only tests need.
    kind: Option<String>,
}

#[derive(Deserialize)]
struct PackageTarget {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

/// The packages to change, and the tests that may notice a change.
pub(crate) struct MutatedPackages {
    /// The name of the changed package, or of a group of several.
    pub(crate) name: String,
    /// The packages' manifests, relative to the workspace's root.
    pub(crate) manifests: Vec<PathBuf>,
    /// The roots of the libraries and programs to mutate, relative to the workspace's root.
    pub(crate) roots: Vec<PathBuf>,
    /// The packages whose tests may notice a change, and the names of their integration tests.
    pub(crate) tested: Vec<String>,
    pub(crate) tests: BTreeSet<String>,
    /// The folders of packages of which only the library's tests are used, in the form of [`TestBinary::name`].
    ///
    /// [`TestBinary::name`]: pugmark_builds::test_binaries::TestBinary::name
    pub(crate) only_library: Vec<String>,
}

impl MutatedPackages {
    /// Returns true if the tests of a binary are used. Cargo also builds an integration test that is not used if its
    /// name is that of a used one.
    pub(super) fn uses_tests_of(&self, binary: &str) -> bool {
        let folder = binary.split_once(" tests/").map(|(folder, _)| folder);
        folder.is_none_or(|folder| !self.only_library.iter().any(|only| only == folder))
    }
}

/// The packages of the workspace.
pub(super) struct Workspace(Vec<Package>);

impl Workspace {
    /// Reads the packages with `cargo metadata`.
    pub(super) fn read() -> Result<Self> {
        let output = command(&["metadata", "--no-deps", "--format-version=1", "--locked"]).output()?;
        ensure!(
            output.status.success(),
            "`cargo metadata` failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Self(serde_json::from_slice::<Metadata>(&output.stdout)?.packages))
    }

    /// Chooses the package with this name, or with this name after `pugmark-`.
    pub(super) fn named(&self, name: &str, own_tests: bool) -> Result<MutatedPackages> {
        let names = [name.to_owned(), format!("pugmark-{name}")];
        let Some(package) = self.0.iter().find(|package| names.contains(&package.name)) else {
            let all: Vec<_> = self.0.iter().map(|package| package.name.as_str()).collect();
            bail!("no package is named {name:?}: there are {}", all.join(", "));
        };
        self.choose(&[package], own_tests)
    }

    /// Chooses each package whose tests can be built, alone.
    pub(super) fn each(&self, own_tests: bool) -> impl Iterator<Item = Result<MutatedPackages>> {
        self.with_tests().map(move |package| self.choose(&[package], own_tests))
    }

    /// Chooses several packages together.
    pub(super) fn all_of(&self, names: &[String], own_tests: bool) -> Result<MutatedPackages> {
        let packages: Vec<_> = self.0.iter().filter(|package| names.contains(&package.name)).collect();
        self.choose(&packages, own_tests)
    }

    fn with_tests(&self) -> impl Iterator<Item = &Package> {
        self.0.iter().filter(|package| !WITHOUT_TESTS.contains(&package.name.as_str()))
    }

    fn choose(&self, packages: &[&Package], own_tests: bool) -> Result<MutatedPackages> {
        let is_chosen = |other: &Package| packages.iter().any(|package| package.name == other.name);
        let uses_one =
            |other: &Package| packages.iter().any(|package| uses(&self.0, other, &package.name, true));
        let tested: Vec<_> =
            self.with_tests().filter(|other| is_chosen(other) || (!own_tests && uses_one(other))).collect();
        let with_tests = tested.iter().filter(|package| !package.is_only_library());
        let targets = with_tests.flat_map(|package| &package.targets);
        let only_library = tested.iter().filter(|package| package.is_only_library());
        let roots = packages.iter().flat_map(|package| package.roots());
        let names: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
        Ok(MutatedPackages {
            name: names.join("+"),
            manifests: packages.iter().map(|one| relative(&one.manifest_path)).collect::<Result<_>>()?,
            roots: roots.map(|root| relative(root)).collect::<Result<_>>()?,
            tested: tested.iter().map(|package| package.name.clone()).collect(),
            tests: targets
                .filter(|target| target.kind.iter().any(|kind| kind == "test"))
                .map(|target| target.name.clone())
                .collect(),
            only_library: only_library.filter_map(|package| package.folder()).collect(),
        })
    }
}

impl Package {
    /// Returns whether only the library's tests are used.
    fn is_only_library(&self) -> bool {
        LIBRARY_ONLY.contains(&self.name.as_str())
    }

    /// Returns the roots of the package's libraries and programs.
    fn roots(&self) -> impl Iterator<Item = &PathBuf> {
        // `rlib` is the kind of a library that other languages can link, too.
        let kinds: &[&str] = if self.is_only_library() { &["lib", "rlib"] } else { &["lib", "rlib", "bin"] };
        let is_of = |target: &PackageTarget, kind: &str| target.kind.iter().any(|one| one == kind);
        let roots =
            kinds.iter().flat_map(move |kind| self.targets.iter().filter(move |one| is_of(one, kind)));
        roots.map(|target| &target.src_path)
    }

    /// Returns the package's folder, relative to the workspace's root.
    fn folder(&self) -> Option<String> {
        Some(relative(&self.manifest_path).ok()?.parent()?.display().to_string())
    }
}

/// Returns the path relative to the workspace's root.
fn relative(path: &Path) -> Result<PathBuf> {
    path.strip_prefix(workspace())
        .map(PathBuf::from)
        .with_context(|| format!("{} is outside of the workspace", path.display()))
}

/// Returns true if a package depends on another one; `in_tests` includes the dependencies of its tests.
fn uses(packages: &[Package], package: &Package, other: &str, in_tests: bool) -> bool {
    package.dependencies.iter().filter(|dependency| dependency.kind.is_none() || in_tests).any(|dependency| {
        dependency.name == other
            || packages
                .iter()
                .find(|package| package.name == dependency.name)
                .is_some_and(|package| uses(packages, package, other, false))
    })
}
