//! Checks the oldest toolchain that the manifest promises to support.

use anyhow::{Context, Result, ensure};
use pugmark_qemu_tests::images::{target_folder, workspace};
use std::process::Command;

use crate::headline::headline;

/// Builds everything with the oldest toolchain that the manifest promises to support, if it is installed.
pub(crate) fn check() -> Result<()> {
    let manifest = std::fs::read_to_string(workspace().join("Cargo.toml"))?;
    let manifest: toml::Table = manifest.parse()?;
    let version = manifest["workspace"]["package"]["rust-version"]
        .as_str()
        .context("Cargo.toml has no workspace.package.rust-version")?;
    let installed = installed();
    let Some(toolchain) = toolchain_of(version, &installed) else {
        println!(
            "the oldest toolchain: not tried, it is not installed (`rustup toolchain install {version}`)"
        );
        return Ok(());
    };
    headline(&format!("cargo check, by {toolchain}"));
    let status = Command::new("rustup")
        .args(["run", toolchain, "cargo", "check", "--workspace", "--all-targets", "--locked"])
        .current_dir(workspace())
        .env("CARGO_TARGET_DIR", target_folder().join("oldest"))
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .status()
        .context("cannot start rustup")?;
    ensure!(
        status.success(),
        "the workspace does not build with {toolchain}, which Cargo.toml's rust-version promises"
    );
    Ok(())
}

/// Rustup's list of installed toolchains, one per line; empty without rustup.
pub(crate) fn installed() -> String {
    let output = Command::new("rustup").args(["toolchain", "list"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The installed toolchain of this version, such as `1.90-x86_64-unknown-linux-gnu` or
/// `1.90.0-x86_64-unknown-linux-gnu`.
fn toolchain_of<'a>(version: &str, installed: &'a str) -> Option<&'a str> {
    installed.lines().filter_map(|line| line.split_whitespace().next()).find(|name| {
        let rest = name.strip_prefix(version);
        rest.is_some_and(|rest| rest.starts_with('-') || rest.starts_with(".0-"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_toolchain_is_found_by_its_version() {
        let installed = "stable-x86_64-unknown-linux-gnu (active, default)\n1.90.0-x86_64-unknown-linux-gnu\n\
                         1.9-x86_64-unknown-linux-gnu\n1.95.0-x86_64-unknown-linux-gnu\n";
        assert_eq!(toolchain_of("1.90", installed), Some("1.90.0-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain_of("1.9", installed), Some("1.9-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain_of("1.91", installed), None);
        assert_eq!(toolchain_of("1.90", ""), None);
    }
}
