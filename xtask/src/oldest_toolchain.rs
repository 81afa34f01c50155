//! Builds each crate with the oldest toolchain that its manifest promises to support.

use anyhow::{Context, Result, bail, ensure};
use pugmark_builds::cargo::headline;
use pugmark_harness::images::{target_folder, workspace};
use std::collections::BTreeMap;
use std::process::Command;

use crate::setup::SetupOptions;

/// Builds the crates with the oldest toolchains that their manifests name, which are installed if they are missing.
///
/// Crates that promise an older version than the workspace are built as dependents build them: without their tests.
pub(crate) fn check(options: SetupOptions) -> Result<()> {
    let manifest = manifest("Cargo.toml")?;
    let package = &manifest["workspace"]["package"];
    let whole =
        package["rust-version"].as_str().context("Cargo.toml has no workspace.package.rust-version")?;
    for (version, crates) in promised(&manifest, whole)? {
        let toolchain = toolchain(&version, options)?;
        let targets: Vec<String> = match version == whole {
            true => vec!["--workspace".into(), "--all-targets".into()],
            false => crates.iter().flat_map(|name| ["--package".into(), name.clone()]).collect(),
        };
        headline(&format!("cargo check {}, by {toolchain}", targets.join(" ")));
        let status = Command::new("rustup")
            .args(["run", &toolchain, "cargo", "check", "--locked"])
            .args(&targets)
            .current_dir(workspace())
            .env("CARGO_TARGET_DIR", target_folder().join("oldest"))
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN")
            .status()
            .context("cannot start rustup")?;
        ensure!(
            status.success(),
            "{crates:?} do not build with {toolchain}, which their rust-version promises"
        );
    }
    Ok(())
}

fn manifest(path: &str) -> Result<toml::Table> {
    let path = workspace().join(path);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.parse()?)
}

/// Returns the versions that the crates of a workspace promise, each with its crates. `whole` is the workspace's own
/// version.
fn promised(workspace: &toml::Table, whole: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let mut promised: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let members = workspace["workspace"]["members"].as_array().context("Cargo.toml has no members")?;
    for member in members.iter().filter_map(toml::Value::as_str) {
        let manifest = manifest(&format!("{member}/Cargo.toml"))?;
        let package = &manifest["package"];
        let name = package["name"].as_str().with_context(|| format!("{member} has no name"))?;
        let version = package["rust-version"].as_str().unwrap_or(whole);
        promised.entry(version.to_owned()).or_default().push(name.to_owned());
    }
    Ok(promised)
}

/// Returns the name of the toolchain of this version; installs it if it is missing.
fn toolchain(version: &str, options: SetupOptions) -> Result<String> {
    if let Some(found) = toolchain_of(version, &installed()) {
        return Ok(found.to_owned());
    }
    let install = ["toolchain", "install", version, "--profile", "minimal"];
    if options.no_install {
        bail!("the oldest toolchain is missing: `rustup {}`", install.join(" "));
    }
    headline(&format!("rustup {}", install.join(" ")));
    let status = Command::new("rustup").args(install).status();
    let status = status.context("cannot start rustup, which installs the oldest toolchain")?;
    ensure!(status.success(), "rustup cannot install {version}");
    let installed = installed();
    let found = toolchain_of(version, &installed);
    found.map(str::to_owned).with_context(|| format!("rustup installed {version}, but lists\n{installed}"))
}

/// Returns rustup's list of installed toolchains, one per line; empty without rustup.
pub(crate) fn installed() -> String {
    let output = Command::new("rustup").args(["toolchain", "list"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Returns the installed toolchain of this version, such as `1.85-x86_64-unknown-linux-gnu` or
/// `1.85.1-x86_64-unknown-linux-gnu`.
fn toolchain_of<'a>(version: &str, installed: &'a str) -> Option<&'a str> {
    installed.lines().filter_map(|line| line.split_whitespace().next()).find(|name| {
        let rest = name.strip_prefix(version);
        rest.is_some_and(|rest| {
            rest.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit()).starts_with('-')
                && !rest.starts_with(|c: char| c.is_ascii_digit())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_toolchain_is_found_by_its_version() {
        let installed = "stable-x86_64-unknown-linux-gnu (active, default)\n1.90.0-x86_64-unknown-linux-gnu\n\
                         1.9-x86_64-unknown-linux-gnu\n1.85.1-x86_64-unknown-linux-gnu\n";
        assert_eq!(toolchain_of("1.90", installed), Some("1.90.0-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain_of("1.9", installed), Some("1.9-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain_of("1.85", installed), Some("1.85.1-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain_of("1.91", installed), None);
        assert_eq!(toolchain_of("1.90", ""), None);
    }

    #[test]
    fn what_kernels_embed_promises_an_older_toolchain_than_the_rest() {
        let manifest = manifest("Cargo.toml").expect("the workspace's manifest");
        let promised = promised(&manifest, "the workspace's").expect("every crate has a name");
        let older = ["pugmark-decoder-core", "pugmark-kernel", "pugmark-pfm"];
        assert_eq!(promised.get("1.85").map(Vec::as_slice), Some(&older.map(String::from)[..]));
        assert!(promised["the workspace's"].contains(&"pugmark-tools".to_owned()), "{promised:?}");
    }
}
