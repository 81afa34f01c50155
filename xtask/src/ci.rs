//! `cargo xtask ci`.

use anyhow::{Result, ensure};
use pugmark_builds::cargo::cargo;
use pugmark_builds::cargo::headline;
use pugmark_builds::test_binaries::libafl;
use pugmark_harness::images::{BY_FIRMWARE, firmware_target, target_folder};
use std::process::ExitCode;

use crate::setup::{self, SetupOptions};
use crate::{deny, miri, oldest_toolchain, sanitize, test};

/// The minutes after which no further mutant is tried: a commit may change many lines.
const MINUTES_OF_MUTANTS: u64 = 5;

/// Checks format, lints and documentation with warnings denied, the oldest toolchains, and the dependencies; runs all
/// tests, some of them in Miri and with AddressSanitizer if a nightly toolchain has these, and the mutants of the lines
/// that the last commit changes.
pub(crate) fn ci(options: SetupOptions) -> Result<()> {
    // The foreign kernel, the examples, the decoders to compare with and the observer for LibAFL are workspaces, too.
    let manifests = [
        "Cargo.toml",
        "lab/harness/foreign-kernel/Cargo.toml",
        "lab/examples/Cargo.toml",
        "lab/examples/uefi/Cargo.toml",
        "lab/examples/limine/Cargo.toml",
        "lab/bench/peers/Cargo.toml",
        "fuzz/libafl/Cargo.toml",
    ];
    for manifest in manifests {
        cargo(&["fmt", "--all", "--check", "--manifest-path", manifest], &[])?;
    }
    cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    let target = target_folder().join("example-kernels").display().to_string();
    let of_examples = ["--manifest-path", "lab/examples/Cargo.toml", "--release", "--target-dir", &target];
    let arguments = [&["clippy", "--locked"], &of_examples[..], &["--", "-D", "warnings"]].concat();
    cargo(&arguments, &[])?;
    for name in BY_FIRMWARE {
        let (manifest, on) = (format!("lab/examples/{name}/Cargo.toml"), firmware_target(name));
        if let Err(missing) = setup::require_targets(&[on], options.no_install) {
            println!("skipped: {missing:#}");
            continue;
        }
        let own = ["--manifest-path", &manifest, "--release", "--target", on, "--target-dir", &target];
        cargo(&[&["clippy", "--locked"], &own[..], &["--", "-D", "warnings"]].concat(), &[])?;
    }
    let of_libafl = libafl();
    let of_libafl: Vec<_> = of_libafl.iter().map(String::as_str).collect();
    let arguments =
        [&["clippy", "--locked", "--all-targets"], &of_libafl[..], &["--", "-D", "warnings"]].concat();
    cargo(&arguments, &[])?;
    cargo(&["doc", "--locked", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    oldest_toolchain::check(options)?;
    deny::deny_if_there()?;
    let skipped_steps = [miri::in_ci()?, sanitize::in_ci()?].into_iter().flatten().collect();
    let tally = test::test(&test::TestOptions { setup: options, name: String::new(), skipped_steps })?;
    ensure!(!tally.misses_something(), "tests were skipped whose tools can be installed");
    mutants_of_the_last_commit()
}

/// Tries the mutants of the lines that the last commit changes. A whole branch may change too many lines; use
/// `cargo xtask mutants --changed` for it.
fn mutants_of_the_last_commit() -> Result<()> {
    headline("mutants of the lines that the last commit changes");
    let base = match pugmark_mutants::commit_before() {
        Ok(base) => base,
        Err(error) => {
            println!("no mutant is tried: {error:#}");
            return Ok(());
        }
    };
    let options = pugmark_mutants::MutantsOptions::of_changes_since(base, MINUTES_OF_MUTANTS);
    ensure!(
        pugmark_mutants::mutants(&options)? == ExitCode::SUCCESS,
        "tests do not notice the mutants above: give them a test that fails, or \
         lab/mutants/equivalent.toml the reason why none can"
    );
    Ok(())
}
