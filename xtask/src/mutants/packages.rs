//! Finds the crate to change, and the tests that may notice a change.

use anyhow::{Context, Result, bail, ensure};
use pugmark_qemu_tests::images::workspace;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::cargo::command;

/// Packages without tests that can be built here: the support crate needs std.
pub(crate) const WITHOUT_TESTS: [&str; 2] = ["pugmark-boot", "pugmark-xtask"];
/// Packages of which only the library's tests are used: the others boot machines.
pub(crate) const LIBRARY_ONLY: [&str; 2] = ["pugmark-qemu-tests", "pugmark-monitor"];

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

/// What is changed, and the tests that may notice it.
pub(crate) struct MutatedPackages {
    /// The changed package, or what several of them are called together.
    pub(crate) name: String,
    /// Their manifests, relative to the workspace's root.
    pub(crate) manifests: Vec<PathBuf>,
    /// The roots of the libraries and programs in which mutants are looked for, relative to the workspace's root.
    pub(crate) roots: Vec<PathBuf>,
    /// The packages whose tests may notice a change, and the names of their integration tests.
    pub(crate) tested: Vec<String>,
    pub(crate) tests: BTreeSet<String>,
    /// The folders of packages of which only the library's tests are used, in the form of [`TestBinary::name`].
    ///
    /// [`TestBinary::name`]: crate::test::binaries::TestBinary::name
    pub(crate) only_library: Vec<String>,
}

impl MutatedPackages {
    /// Whether the tests of a binary are used. Cargo also builds an integration test that is not used if its name is
    /// that of a used one.
    pub(super) fn uses_tests_of(&self, binary: &str) -> bool {
        let folder = binary.split_once(" tests/").map(|(folder, _)| folder);
        folder.is_none_or(|folder| !self.only_library.iter().any(|only| only == folder))
    }
}

/// Finds the crate with this name, or with this name after `pugmark-`.
pub(super) fn mutated_package(name: &str, own_tests: bool) -> Result<MutatedPackages> {
    let output = command(&["metadata", "--no-deps", "--format-version=1", "--locked"]).output()?;
    ensure!(output.status.success(), "`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr));
    let packages = serde_json::from_slice::<Metadata>(&output.stdout)?.packages;
    let names = [name.to_owned(), format!("pugmark-{name}")];
    let Some(package) = packages.iter().find(|package| names.contains(&package.name)) else {
        let all: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
        bail!("no package is named {name:?}: there are {}", all.join(", "));
    };
    let root = workspace();
    let relative = |path: &PathBuf| {
        path.strip_prefix(&root)
            .map(PathBuf::from)
            .with_context(|| format!("{} is outside of the workspace", path.display()))
    };
    let only_library = |package: &Package| LIBRARY_ONLY.contains(&package.name.as_str());
    let of_kind = |package: &Package, kind: &str| -> Vec<PathBuf> {
        let targets = package.targets.iter().filter(|target| target.kind.iter().any(|one| one == kind));
        targets.map(|target| target.src_path.clone()).collect()
    };
    let mut roots = of_kind(package, "lib");
    // So is a library called that other languages can be linked with too.
    roots.extend(of_kind(package, "rlib"));
    if !only_library(package) {
        roots.extend(of_kind(package, "bin"));
    }
    let tested: Vec<_> = packages
        .iter()
        .filter(|other| {
            other.name == package.name || (!own_tests && uses(&packages, other, &package.name, true))
        })
        .filter(|other| !WITHOUT_TESTS.contains(&other.name.as_str()))
        .collect();
    let with_tests = tested.iter().filter(|package| !only_library(package));
    let targets = with_tests.flat_map(|package| &package.targets);
    let folder =
        |package: &Package| Some(relative(&package.manifest_path).ok()?.parent()?.display().to_string());
    Ok(MutatedPackages {
        name: package.name.clone(),
        manifests: vec![relative(&package.manifest_path)?],
        roots: roots.iter().map(relative).collect::<Result<_>>()?,
        tested: tested.iter().map(|package| package.name.clone()).collect(),
        tests: targets
            .filter(|target| target.kind.iter().any(|kind| kind == "test"))
            .map(|target| target.name.clone())
            .collect(),
        only_library: tested
            .iter()
            .filter(|package| only_library(package))
            .filter_map(|one| folder(one))
            .collect(),
    })
}

/// Whether a package depends on another one; `in_tests` includes the dependencies of its tests.
fn uses(packages: &[Package], package: &Package, other: &str, in_tests: bool) -> bool {
    package.dependencies.iter().filter(|dependency| dependency.kind.is_none() || in_tests).any(|dependency| {
        dependency.name == other
            || packages
                .iter()
                .find(|package| package.name == dependency.name)
                .is_some_and(|package| uses(packages, package, other, false))
    })
}
