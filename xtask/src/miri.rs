//! `cargo xtask miri`: unit tests in Miri, which finds undefined behaviour that no test can see.
//!
//! Loops of tests that only repeat are shorter there (`cfg(miri)`); tests that need the machine itself are absent.

use anyhow::Result;
use clap::Args;
use pugmark_harness::images::target_folder;

use crate::nightly;

/// Miri's options. Strict provenance: a pointer made from an address is an error. The host's clock and random numbers
/// are available, for `fastrand` and the test harness. Memory that a processor may still write to is leaked on purpose,
/// in tests as well.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-strict-provenance -Zmiri-ignore-leaks";

/// The crates, and those of their tests that CI runs (a part of each name), mainly of the driver's modules that access
/// memory. The decoder has no `unsafe` code, so its tests are worth less time in Miri.
const CRATES: [(&str, &[&str]); 2] = [
    (
        "pugmark-kernel",
        &[
            "amd::branches::tests::branch_sampling",
            "amd::counters::tests::sampling::ibs_and_counters",
            "amd::ibs::tests::errata::erratum_718",
            "drain::",
            "intel::ds::tests::area::takes_memory",
            "intel::lbr::branch::",
            "intel::pt::buffer::tests::a_single_range",
            "intel::pt::chunks::",
            "intel::pt::topa::",
            "intel::pt::xsave::",
            "lapic::",
            "lifecycle::",
            "memory::",
            "pmi::tests::the_order",
        ],
    ),
    (
        "pugmark-decoder-core",
        &[
            "bts::tests::records",
            "config::",
            "errata::",
            "event::",
            "flow::tests",
            "flow::tnt",
            "flow::loops",
        ],
    ),
];

#[derive(Args)]
pub(crate) struct MiriOptions {
    /// Only tests whose path contains one of these, such as `drain::`; all of them take hours
    #[arg(value_name = "TEST")]
    tests: Vec<String>,
    /// The tests that CI runs
    #[arg(long, conflicts_with = "tests")]
    ci: bool,
}

/// Runs the requested tests.
pub(crate) fn miri(options: &MiriOptions) -> Result<()> {
    let toolchain = toolchain().map_err(anyhow::Error::msg)?;
    for (package, chosen) in CRATES {
        let asked: Vec<&str> = options.tests.iter().map(String::as_str).collect();
        run(&toolchain, package, if options.ci { chosen } else { &asked })?;
    }
    Ok(())
}

/// Runs the chosen tests. Returns the reason for skipping them, if the machine has no Miri.
pub(crate) fn in_ci() -> Result<Option<String>> {
    match toolchain() {
        Ok(_) => miri(&MiriOptions { tests: Vec::new(), ci: true }).map(|()| None),
        Err(reason) => Ok(Some(format!("Miri: {reason}"))),
    }
}

fn toolchain() -> Result<String, String> {
    nightly::with_components(&["miri", "rust-src"])
}

fn run(toolchain: &str, package: &str, tests: &[&str]) -> Result<()> {
    let folder = target_folder().join("miri").display().to_string();
    let arguments =
        ["miri", "test", "--locked", "--lib", "--package", package, "--target-dir", &folder, "--"];
    nightly::cargo(toolchain, &[&arguments, tests].concat(), &[("MIRIFLAGS", FLAGS), ("RUST_BACKTRACE", "0")])
}
