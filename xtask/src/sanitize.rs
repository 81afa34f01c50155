//! `cargo xtask sanitize`: tests with AddressSanitizer, which detects each access outside an allocation, or after it
//! was freed: those of libipt.so.2, which C programs call and which maps files, and those of the recorder's plugin,
//! which the emulator loads.

use anyhow::{Context, Result, ensure};
use pugmark_builds::cargo::headline;
use pugmark_harness::images::{target_folder, workspace};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::nightly;

/// The test program exports the sanitizer's functions, because the shared library that it loads does not contain them.
const FLAGS: &str = "-Zsanitizer=address -Clink-arg=-rdynamic";

/// The tests load libraries and never unload them, which is no leak.
const OPTIONS: &str = "detect_leaks=0:abort_on_error=1";

/// The target is named, so that build scripts and procedural macros, which the compiler loads, are built without the
/// sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

const PLUGIN: &str = "recorder/src/linux/emulator/plugin.rs";
const EMULATOR: &str = "qemu-x86_64";

/// A program with signals and forks. It executes no other program: the emulator for that would lack the sanitizer's
/// functions.
const PROGRAM: &str =
    "trap : USR1; kill -USR1 $$; (exit 3); n=0; while [ $n -lt 99 ]; do n=$((n + 1)); done & wait";

/// The number of rings: of the process and the two that it forks, and of a thread of each.
const RINGS: u32 = 6;

/// The size of the file of the rings, and where in it is the number of those that were made: as the recorder's
/// `emulator/wire.rs` has it.
const RINGS_BYTES: u64 = 4096 + (1 << 17) * (4096 + (4 << 19));
const MADE_AT: u64 = 4;

/// The part of the sanitizer's functions that only a program may have, and no shared library.
const OF_PROGRAMS: &str = "asan_preinit.cpp.o";

/// Runs the library's unit tests, and those that compare each of its functions with libipt's; the plugin's unit tests,
/// and the plugin in the emulator. Returns the reason if the last was skipped.
pub(crate) fn sanitize() -> Result<Option<String>> {
    let toolchain = toolchain().map_err(anyhow::Error::msg)?;
    let folder = target_folder().join("sanitize");
    let target = folder.display().to_string();
    let build = ["test", "--locked", "--target", TARGET, "--target-dir", &target];
    let tests = ["--package", "pugmark-capi", "--lib", "--test", "beside_libipt"];
    let environment = [("RUSTFLAGS", FLAGS), ("ASAN_OPTIONS", OPTIONS)];
    nightly::cargo(&toolchain, &[&build[..], &tests].concat(), &environment)?;
    headline("the recorder's plugin with AddressSanitizer");
    let unit_tests = plugin(&toolchain, &folder, "plugin_tests", &["--test"])?;
    run(Command::new(unit_tests).env("ASAN_OPTIONS", OPTIONS))?;
    if !has_emulator() {
        return Ok(Some(format!("AddressSanitizer: {EMULATOR} of QEMU 5 to 8 is not there")));
    }
    run_in_emulator(&toolchain, &folder).map(|()| None)
}

/// Does the same in CI. Returns the reason if a part was skipped: the machine has no nightly toolchain or no emulator.
pub(crate) fn in_ci() -> Result<Option<String>> {
    match toolchain() {
        Ok(_) => sanitize(),
        Err(reason) => Ok(Some(format!("AddressSanitizer: {reason}"))),
    }
}

/// Returns a toolchain that is as new as the one with Miri: an old one does not build the workspace.
fn toolchain() -> Result<String, String> {
    nightly::with_components(&["miri", "rust-src"])
}

/// Compiles the plugin, which is a separate crate, with the sanitizer.
fn plugin(toolchain: &str, folder: &Path, name: &str, options: &[&str]) -> Result<PathBuf> {
    let file = folder.join(name);
    let mut rustc = Command::new("rustup");
    rustc.args(["run", toolchain, "rustc", "--edition", "2024", "-Zsanitizer=address"]);
    rustc.args(["--crate-name", "pugmark_plugin"]);
    run(rustc.args(options).arg("-o").args([&file, &workspace().join(PLUGIN)]))?;
    Ok(file)
}

/// Runs a program in the emulator with the plugin. Nobody reads its rings, which have room for the whole run.
fn run_in_emulator(toolchain: &str, folder: &Path) -> Result<()> {
    let file = plugin(toolchain, folder, "plugin.so", &["--crate-type", "cdylib", "-Cpanic=abort"])?;
    let path = folder.join("rings");
    let _ = fs::remove_file(&path);
    let rings = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    rings.set_len(RINGS_BYTES)?;
    let options = format!("{0},plugin={0},rings={1},follow=1", file.display(), path.display());
    let shell = fs::canonicalize("/bin/sh")?;
    let sanitizer = shared_sanitizer(toolchain, folder)?;
    run(Command::new(EMULATOR)
        .args(["-cpu", "max", "-plugin", &options, "-0", "sh"])
        .arg(shell)
        .args(["-c", PROGRAM])
        // The emulator uses this variable, and does not pass it on to the program.
        .env("LD_PRELOAD", sanitizer)
        .env("QEMU_UNSET_ENV", "LD_PRELOAD")
        .env("ASAN_OPTIONS", OPTIONS))?;
    let mut made = [0; 4];
    rings.read_exact_at(&mut made, MADE_AT)?;
    let made = u32::from_le_bytes(made);
    ensure!(made == RINGS, "the plugin has made {made} rings in place of {RINGS}");
    fs::remove_file(path)?;
    Ok(())
}

/// Makes a shared library of the sanitizer's functions: Rust's toolchains have an archive of them.
fn shared_sanitizer(toolchain: &str, folder: &Path) -> Result<PathBuf> {
    let output =
        Command::new("rustup").args(["run", toolchain, "rustc", "--print", "target-libdir"]).output()?;
    let archives = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let archive = folder.join("sanitizer.a");
    // The toolchain's own archive stays unchanged.
    fs::write(&archive, fs::read(archives.join("librustc-nightly_rt.asan.a"))?)?;
    run(Command::new("ar").arg("d").arg(&archive).arg(OF_PROGRAMS))?;
    let library = folder.join("sanitizer.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-Wl,--whole-archive"]).arg(&archive).arg("-Wl,--no-whole-archive");
    run(cc.args(["-lpthread", "-ldl", "-lrt", "-lm", "-lresolv", "-o"]).arg(&library))?;
    Ok(library)
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} failed");
    Ok(())
}

/// Returns whether the emulator is installed in a version that loads the plugin.
fn has_emulator() -> bool {
    let Ok(output) = Command::new(EMULATOR).arg("--version").output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split("version ").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    version.is_some_and(|version| (5..9).contains(&version))
}
