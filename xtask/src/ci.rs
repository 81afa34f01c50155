//! `cargo xtask ci`.

use anyhow::ensure;
use std::process::ExitCode;

use crate::cargo::cargo;
use crate::{Done, SetupOptions, deny, headline, mutate, oldest, test};

/// After so many minutes no mutation is begun any more: a change of everything touches them all.
const MINUTES_OF_MUTATIONS: u64 = 5;

/// Format, lints and documentation with warnings denied, the oldest toolchain, what is built in; then all tests, then the
/// mutations that the change touches.
pub(crate) fn ci(options: SetupOptions) -> Done {
    // The kernel that is not ours is a workspace of its own.
    for manifest in ["Cargo.toml", "qemu-tests/foreign-kernel/Cargo.toml"] {
        cargo(&["fmt", "--all", "--check", "--manifest-path", manifest], &[])?;
    }
    cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    cargo(&["doc", "--locked", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    oldest::check()?;
    deny::deny_if_there()?;
    let tally = test::test(&test::Options { setup: options, name: String::new() })?;
    ensure!(!tally.misses_something(), "tests were skipped whose tools can be installed");
    mutations()
}

/// What a branch has that main has not; on main its last commit.
fn mutations() -> Done {
    headline("mutations that the change touches");
    let base = match mutate::default_base() {
        Ok(base) => base,
        Err(error) => {
            println!("none is tried: {error:#}");
            return Ok(());
        }
    };
    let options = mutate::Options {
        changed: Some(Some(base)),
        within: Some(MINUTES_OF_MUTATIONS),
        ..Default::default()
    };
    ensure!(mutate::mutate(&options)? == ExitCode::SUCCESS, "tests do not notice mutations");
    Ok(())
}
