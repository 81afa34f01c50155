//! `cargo xtask portable`: decoder and views on systems on which nothing can be recorded: their tests for aarch64 in
//! QEMU's user-mode emulator, the same output of each view there, and builds for Windows and macOS.

use anyhow::{Context, Result, ensure};
use pugmark_builds::cargo::{cargo, headline};
use pugmark_harness::images::target_folder;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::setup::{self, SetupOptions};

const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// The other systems, for which no linker is needed to check the code.
const CHECKED: [&str; 2] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin"];
/// The linker and the emulator of aarch64, by Debian's names.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: [&str; 3] = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"];
/// Crates whose integration tests start no program of ours: under the emulator, such a program would not start.
const ALL_TESTS: [&str; 3] = ["pugmark-decoder-core", "pugmark-ipt", "pugmark-pfm"];
const UNIT_TESTS: [&str; 2] = ["pugmark-ipt-programs", "pugmark-tools"];

/// The arguments of each view; the path of a recording follows them.
const VIEWS: [&[&str]; 13] = [
    &["decode", "--json"],
    &["decode", "--layer", "packets"],
    &["report"],
    &["report", "--children"],
    &["report", "--json"],
    &["script"],
    &["script", "--branches"],
    &["calls", "--of", "_dl_relocate_object"],
    &["last"],
    &["flamegraph", "-f", "folded"],
    &["flamegraph"],
    &["timeline", "-o", "/dev/stdout"],
    &["coverage", "-f", "edges"],
];

/// Builds, tests and compares.
pub(crate) fn portable(options: SetupOptions) -> Result<()> {
    setup::prepare_portable(options.no_install)?;
    let targets: Vec<_> = CHECKED.into_iter().chain([AARCH64]).collect();
    setup::require_targets(&targets, options.no_install)?;
    for target in CHECKED {
        cargo(&[&["check", "--locked", "--target", target][..], &packages(&UNIT_TESTS)].concat(), &[])?;
    }
    let emulator = EMULATOR.join(" ");
    let environment = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &emulator),
    ];
    let test = ["test", "--locked", "--quiet", "--target", AARCH64, "--lib"];
    cargo(&[&test[..], &["--tests"], &packages(&ALL_TESTS)].concat(), &environment)?;
    cargo(&[&test[..], &packages(&UNIT_TESTS)].concat(), &environment)?;
    let build = ["build", "--locked", "--package", "pugmark-tools", "--bin", "pugmark"];
    cargo(&build, &[])?;
    cargo(&[&build[..], &["--target", AARCH64]].concat(), &environment)?;
    compare_views()
}

fn packages<'n>(names: &[&'n str]) -> Vec<&'n str> {
    names.iter().flat_map(|name| ["--package", name]).collect()
}

/// Records a program here, and compares each view's output for it here and for aarch64.
fn compare_views() -> Result<()> {
    let target = target_folder();
    let recording = target.join("portable.rec");
    let pugmark = target.join("debug/pugmark");
    headline("the views of a recording, here and for aarch64");
    let mut record = Command::new(&pugmark);
    record.args(["record", "--tsc", "--cyc", "-o"]).arg(&recording).args(["--", "ls", "/"]);
    ensure!(record.status().context("cannot start pugmark")?.success(), "`pugmark record` failed");
    let elsewhere = target.join(AARCH64).join("debug/pugmark");
    for view in VIEWS {
        let here = output(Command::new(&pugmark), view, &recording)?;
        let mut emulated = Command::new(EMULATOR[0]);
        emulated.args(&EMULATOR[1..]).arg(&elsewhere);
        let there = output(emulated, view, &recording)?;
        let name = view.join(" ");
        ensure!(!here.is_empty(), "`pugmark {name}` says nothing");
        ensure!(here == there, "`pugmark {name}` has another output for aarch64");
        println!("pugmark {name}: {} bytes, equal", here.len());
    }
    fs::remove_dir_all(&recording).with_context(|| format!("cannot remove {}", recording.display()))
}

fn output(mut command: Command, view: &[&str], recording: &Path) -> Result<Vec<u8>> {
    let output = command.args(view).arg(recording).output().context("cannot start pugmark")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`pugmark {}`: {}: {error}", view.join(" "), output.status);
    Ok(output.stdout)
}
