//! Cargo, called on this workspace.

use anyhow::{Context, Result, ensure};
use pugmark_qemu_tests::images::workspace;
use std::process::Command;

/// Runs cargo in the workspace's root with these arguments and environment, its output passed on.
pub(crate) fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    crate::headline(&format!("cargo {}", arguments.join(" ")));
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(workspace())
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(())
}
