//! `cargo xtask package`: the packages for users: the crates for a registry, a Debian package of the programs, and all
//! files of a release.

mod cargo_home;
mod release;

use anyhow::{Context, Result, ensure};
use cargo_home::fresh_cargo_home;
use clap::Args;
use pugmark_builds::cargo::{cargo, command};
use pugmark_harness::images::{build_monitor, target_folder, workspace};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::setup::{self, SetupOptions};

/// The folder of files that cargo-deb packs besides the programs. cargo-deb finds the build's folder by the prefix
/// `release/`.
const DOCUMENTS: &str = "release/debian";

/// The packages with programs.
const PACKAGES: [&str; 4] = ["--package", "pugmark-tools", "--package", "pugmark-ipt-programs"];

#[derive(Args)]
pub(crate) struct PackageOptions {
    #[command(flatten)]
    setup: SetupOptions,
    /// Make a Debian package of the programs instead, with manual pages and completions, by cargo-deb
    #[arg(long)]
    deb: bool,
    /// Make all files of a release instead: static programs, the Debian package, the crates
    #[arg(long, conflicts_with = "deb")]
    release: bool,
}

/// Does all of `cargo publish` except the upload, or makes the Debian package, or all files of a release.
pub(crate) fn package(options: &PackageOptions) -> Result<()> {
    if options.release {
        return release::release(options.setup);
    }
    if options.deb {
        return debian_package(options.setup).map(|package| println!("{}", package.display()));
    }
    dry_publish()
}

/// Does all of `cargo publish` except the upload.
fn dry_publish() -> Result<()> {
    let target = target_folder().join("published");
    let home = fresh_cargo_home(&target)?.display().to_string();
    let target = target.display().to_string();
    let publish =
        ["publish", "--dry-run", "--workspace", "--locked", "--allow-dirty", "--target-dir", &target];
    cargo(&publish, &[("CARGO_HOME", &home)])?;
    println!("{target}/package has what each crate would contain; nothing was uploaded");
    Ok(())
}

/// Makes `target/debian/pugmark_VERSION_ARCHITECTURE.deb`, as `tools/Cargo.toml` says, and returns its path.
fn debian_package(setup: SetupOptions) -> Result<PathBuf> {
    setup::prepare_deb(setup.no_install)?;
    cargo(&[&["build", "--locked", "--release"], &PACKAGES[..]].concat(), &[])?;
    write_documents(&target_folder().join("release/pugmark"), &target_folder().join(DOCUMENTS))?;
    strip(&build_monitor()?, &target_folder().join(DOCUMENTS).join("pugmark-monitor"))?;
    let deb = ["deb", "--locked", "--package", "pugmark-tools", "--no-build", "--strip"];
    let output = command(&deb).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "`cargo deb` failed");
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

/// Writes a program without symbols to `out`. cargo-deb strips the package's own programs only.
fn strip(program: &Path, out: &Path) -> Result<()> {
    let output =
        Command::new("strip").arg("-o").args([out, program]).output().context("cannot start strip")?;
    ensure!(output.status.success(), "strip failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Writes the manual pages, the completions and the licences into a folder.
fn write_documents(pugmark: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let run = |arguments: &[&str]| -> Result<Vec<u8>> {
        let output = Command::new(pugmark).args(arguments).output().context("cannot start pugmark")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`pugmark {}` failed: {error}", arguments.join(" "));
        Ok(output.stdout)
    };
    let pages = String::from_utf8(run(&["man", &folder.join("man").display().to_string()])?)?;
    let output =
        Command::new("gzip").args(["-9", "-n"]).args(pages.lines()).output().context("cannot start gzip")?;
    ensure!(output.status.success(), "gzip failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    // The file name that each shell looks for.
    for (shell, name) in [("bash", "pugmark"), ("fish", "pugmark.fish"), ("zsh", "_pugmark")] {
        fs::write(folder.join(name), run(&["completions", shell])?)?;
    }
    let metadata = command(&["metadata", "--locked", "--format-version=1", "--filter-platform", TARGET])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(metadata.status.success(), "`cargo metadata` failed");
    let metadata: Value = serde_json::from_slice(&metadata.stdout)?;
    let licences = licences(&metadata, &["pugmark-ipt-programs", "pugmark-monitor"])?;
    fs::write(folder.join("licences.txt"), licences)?;
    Ok(())
}

/// The platform of the programs.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Returns the licences of everything that is built into the programs of packages: each requires that its text is
/// distributed.
fn licences(metadata: &Value, programs: &[&str]) -> Result<String> {
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let by_id: BTreeMap<_, _> = packages.iter().map(|package| (package["id"].as_str(), package)).collect();
    let mut text = format!(
        "Pugmark: MIT OR Apache-2.0\n\n{}\n{}\n{}\n",
        fs::read_to_string(workspace().join("LICENSE-MIT"))?,
        "The text of the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.\n",
        fs::read_to_string(workspace().join("pfm/events/NOTICE.md"))?,
    );
    writeln!(text, "What is built into the programs besides Rust's standard library (MIT OR Apache-2.0):")?;
    let mut all = BTreeSet::new();
    for program in programs {
        all.extend(built_in(metadata, program)?);
    }
    for id in all {
        let package = by_id.get(&Some(id.as_str())).with_context(|| format!("{id} is not described"))?;
        let [name, version, manifest] = ["name", "version", "manifest_path"].map(|key| package[key].as_str());
        let (Some(name), Some(version), Some(manifest)) = (name, version, manifest) else { continue };
        let ours = package["source"].is_null();
        if ours {
            continue;
        }
        let licence = package["license"].as_str().unwrap_or("see below");
        write!(text, "\n==== {name} {version}: {licence}\n")?;
        for file in licence_files(Path::new(manifest).parent().context("a manifest without a folder")?)? {
            write!(text, "\n{}", file.replace('\r', ""))?;
        }
    }
    Ok(text)
}

/// Returns the identifiers of all packages that a package is built from, including itself. Neither tests nor build
/// scripts count.
fn built_in(metadata: &Value, package: &str) -> Result<BTreeSet<String>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let nodes = list(&metadata["resolve"]["nodes"]);
    let is_asked = |entry: &&Value| entry["name"] == package && entry["source"].is_null();
    let packages = list(&metadata["packages"]);
    let first = packages.iter().find(is_asked).with_context(|| format!("there is no package {package}"))?;
    let mut found = BTreeSet::new();
    let mut open = vec![first["id"].clone()];
    while let Some(id) = open.pop() {
        let name = id.as_str().context("an identifier that is no text")?;
        if !found.insert(name.to_owned()) {
            continue;
        }
        for node in nodes.iter().filter(|node| node["id"] == id) {
            let is_normal =
                |entry: &&Value| list(&entry["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            open.extend(list(&node["deps"]).iter().filter(is_normal).map(|entry| entry["pkg"].clone()));
        }
    }
    Ok(found)
}

/// Returns the texts of the licences in a crate's folder. A crate that is available under MIT's licence needs no other
/// text.
fn licence_files(folder: &Path) -> Result<Vec<String>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
        if is_licence.iter().any(|begin| name.starts_with(begin)) && entry.file_type()?.is_file() {
            files.push((name, entry.path()));
        }
    }
    files.sort();
    if files.iter().any(|(name, _)| name.contains("MIT")) {
        files.retain(|(name, _)| !name.contains("APACHE"));
    }
    files.iter().map(|(_, path)| Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn metadata() -> Value {
        let node = |id: &str, deps: &[(&str, Option<&str>)]| {
            let dep = |(id, kind): &(&str, Option<&str>)| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
            json!({"id": id, "deps": deps.iter().map(dep).collect::<Vec<_>>()})
        };
        json!({
            "packages": [{"name": "tool", "id": "tool", "source": null}, {"name": "a", "id": "a", "source": "x"}],
            "resolve": {"nodes": [
                node("tool", &[("a", None), ("test", Some("dev")), ("script", Some("build"))]),
                node("a", &[("deep", None), ("tool", Some("dev"))]),
                node("deep", &[]),
                node("test", &[("testing", None)]),
                node("script", &[]),
            ]},
        })
    }

    #[test]
    fn what_is_built_in_are_the_dependencies_but_those_of_tests_and_build_scripts() {
        let found = built_in(&metadata(), "tool").unwrap();
        assert!(found.iter().eq(["a", "deep", "tool"]), "{found:?}");
        let error = built_in(&metadata(), "a").unwrap_err().to_string();
        assert_eq!(error, "there is no package a");
    }

    #[test]
    fn licences_are_found_by_their_files_and_apaches_is_left_out_beside_mits() {
        let folder = std::env::temp_dir().join(format!("pugmark-licences-{}", std::process::id()));
        for (files, expected) in [
            (&["LICENSE-APACHE", "LICENSE-MIT", "lib.rs"][..], &["license-mit"][..]),
            (&["LICENSE-APACHE", "NOTICE"], &["license-apache", "notice"]),
            (&["license.txt", "README.md"], &["license.txt"]),
            (&["README.md"], &[]),
        ] {
            fs::create_dir_all(&folder).unwrap();
            for file in files {
                fs::write(folder.join(file), file.to_lowercase()).unwrap();
            }
            assert_eq!(licence_files(&folder).unwrap(), expected, "{files:?}");
            fs::remove_dir_all(&folder).unwrap();
        }
    }
}
