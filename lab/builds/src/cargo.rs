//! Calls cargo on this workspace.

use anyhow::{Context, Result, ensure};
use pugmark_harness::images::workspace;
use std::process::Command;

/// Arguments for commands that build tests. Test harnesses always unwind, in every profile: without the first argument
/// the programs that tests start, and all their libraries, would be built twice. The manifest has `abort`, because the
/// images, which have no std, are checked in that profile too. The second argument saves a sixth of the processor time
/// of a clean build; builds for the tests are seldom incremental.
pub const FOR_TESTS: [&str; 4] =
    ["--config", "profile.dev.panic='unwind'", "--config", "profile.dev.incremental=false"];

/// Prints the headline of the next step, so that a long log is easier to read.
pub fn headline(text: &str) {
    println!("== {text}");
}

/// Makes a cargo command with these arguments, in the workspace's root.
#[must_use]
pub fn command(arguments: &[&str]) -> Command {
    headline(&format!("cargo {}", arguments.join(" ")));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// Runs cargo in the workspace's root with these arguments and this environment; its output is not captured.
///
/// # Errors
/// If cargo cannot be started, or fails.
pub fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let status =
        command(arguments).envs(environment.iter().copied()).status().context("cannot start cargo")?;
    ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(())
}
