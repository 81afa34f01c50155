//! `cargo xtask ci`.

use anyhow::{Result, ensure};
use pugmark_qemu_tests::images::target_folder;
use std::process::ExitCode;

use crate::cargo::cargo;
use crate::headline::headline;
use crate::setup::SetupOptions;
use crate::{deny, mutate, oldest_toolchain, test};

/// After this many minutes no further mutation is started, because a change of everything touches all of them.
const MINUTES_OF_MUTATIONS: u64 = 5;

/// Checks format, lints and documentation with warnings denied, the oldest toolchain, and the dependencies; runs all
/// tests and the mutations that the last commit touches.
pub(crate) fn ci(options: SetupOptions) -> Result<()> {
    // The foreign kernel, the examples and the decoders to compare with are workspaces of their own.
    let manifests = [
        "Cargo.toml",
        "qemu-tests/foreign-kernel/Cargo.toml",
        "examples/Cargo.toml",
        "xtask/peers/Cargo.toml",
    ];
    for manifest in manifests {
        cargo(&["fmt", "--all", "--check", "--manifest-path", manifest], &[])?;
    }
    cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    let target = target_folder().join("example-kernels").display().to_string();
    let of_examples = ["--manifest-path", "examples/Cargo.toml", "--release", "--target-dir", &target];
    let arguments = [&["clippy", "--locked"], &of_examples[..], &["--", "-D", "warnings"]].concat();
    cargo(&arguments, &[])?;
    cargo(&["doc", "--locked", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    oldest_toolchain::check()?;
    deny::deny_if_there()?;
    let tally = test::test(&test::TestOptions { setup: options, name: String::new() })?;
    ensure!(!tally.misses_something(), "tests were skipped whose tools can be installed");
    mutations()
}

/// Tries the mutations that the last commit touches. A whole branch may touch all of them; that is for `cargo xtask
/// mutate --changed`.
fn mutations() -> Result<()> {
    headline("mutations that the last commit touches");
    let base = match mutate::commit_before() {
        Ok(base) => base,
        Err(error) => {
            println!("no mutation is tried: {error:#}");
            return Ok(());
        }
    };
    let options = mutate::MutateOptions {
        changed: Some(Some(base)),
        within: Some(MINUTES_OF_MUTATIONS),
        ..Default::default()
    };
    ensure!(
        mutate::mutate(&options)? == ExitCode::SUCCESS,
        "tests do not notice the mutations above: give them a test that fails"
    );
    Ok(())
}
