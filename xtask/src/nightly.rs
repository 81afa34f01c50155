//! Nightly toolchains, for the tools that stable Rust does not have.

use anyhow::{Context, Result, ensure};
use pugmark_builds::cargo::headline;
use pugmark_harness::images::workspace;
use std::process::Command;

use crate::oldest_toolchain::installed;

/// Returns the names of the nightly toolchains in rustup's list.
pub(crate) fn nightlies(installed: &str) -> impl Iterator<Item = &str> {
    let names = installed.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with("nightly-"))
}

/// Returns an installed nightly toolchain that has these components, or a reason that names the missing part.
pub(crate) fn with_components(components: &[&str]) -> Result<String, String> {
    let installed = installed();
    let has = |name: &&str| {
        let output =
            Command::new("rustup").args(["component", "list", "--installed", "--toolchain", name]).output();
        output.is_ok_and(|output| has_all(&String::from_utf8_lossy(&output.stdout), components))
    };
    nightlies(&installed).find(has).map(str::to_owned).ok_or_else(|| {
        let wanted: String = components.iter().map(|component| format!(" -c {component}")).collect();
        format!("no nightly toolchain that has all it needs is installed (`rustup toolchain install nightly{wanted}`)")
    })
}

/// Returns whether rustup's list of a toolchain's components has all of these, with or without a target.
fn has_all(listed: &str, components: &[&str]) -> bool {
    let is = |line: &str, component: &str| {
        line.strip_prefix(component).is_some_and(|rest| rest.is_empty() || rest.starts_with("-x86_64"))
    };
    components.iter().all(|component| listed.lines().any(|line| is(line, component)))
}

/// Runs cargo of this toolchain in the workspace's root; its output is not captured.
pub(crate) fn cargo(toolchain: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    headline(&format!("cargo {}, by {toolchain}", arguments.join(" ")));
    let status = Command::new("rustup")
        .args(["run", toolchain, "cargo"])
        .args(arguments)
        .current_dir(workspace())
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .envs(environment.iter().copied())
        .status()
        .context("cannot start rustup")?;
    ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nightly_toolchain_is_found_with_or_without_a_date() {
        let stable = "stable-x86_64-unknown-linux-gnu (active, default)\n1.95.0-x86_64-unknown-linux-gnu\n";
        for name in ["nightly-x86_64-unknown-linux-gnu", "nightly-2026-05-20-x86_64-unknown-linux-gnu"] {
            let installed = format!("{stable}{name} (override)\n");
            assert_eq!(nightlies(&installed).collect::<Vec<_>>(), [name]);
        }
        assert_eq!(nightlies(stable).next(), None);
    }

    #[test]
    fn a_component_is_there_by_its_whole_name() {
        let listed =
            "cargo-x86_64-unknown-linux-gnu\nmiri-x86_64-unknown-linux-gnu\nrust-src\nrust-std-x86\n";
        for (components, there) in [
            (&["miri", "rust-src"][..], true),
            (&[], true),
            (&["miri", "clippy"], false),
            (&["rust"], false),
            (&["mir"], false),
        ] {
            assert_eq!(has_all(listed, components), there, "{components:?}");
        }
    }
}
