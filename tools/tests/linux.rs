//! Runs `perf record` in Debian's Linux on the monitor, and compares the results of perf's own decoder and of ours with
//! the monitor's log; and decodes what the monitor itself has traced of Linux.
//!
//! ```sh
//! PUGMARK_LONG=1 cargo test -p pugmark-tools --test linux -- --nocapture     # the whole table
//! ```

use anyhow::{Result, ensure};
use pugmark_harness::images::Images;
use pugmark_harness::linux::packages;
use pugmark_harness::linux::verify::{Verified, Verify, all, short};
use pugmark_harness::linux::{Guest, LinuxMachine, Monitor};
use pugmark_harness::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns Debian's kernel and busybox, if they have been downloaded; otherwise reports that the test is skipped.
fn debian() -> Option<[PathBuf; 2]> {
    let packages = packages::packages(true);
    let found = packages.kernel().and_then(|kernel| Ok([kernel, packages.busybox()?]));
    if found.is_err() {
        println!("skipped: Debian's Linux is not installed");
    }
    found.ok()
}

/// Finds the requirements for booting Linux with perf; otherwise reports that the test is skipped.
fn find() -> Option<Verify> {
    let [kernel, busybox] = debian()?;
    let perf = PathBuf::from("/usr/bin/perf");
    if !perf.exists() {
        println!("skipped: perf is not installed");
        return None;
    }
    let (pugmark, kept) = (env!("CARGO_BIN_EXE_pugmark").into(), packages::folder().join("wrong"));
    Some(Verify { kernel, busybox, perf, pugmark, kept })
}

#[test]
fn what_perf_and_pugmark_decode_of_programs_in_linux_is_what_retired() -> Result<()> {
    let Some(verify) = find() else { return Ok(()) };
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    verify.run(&if long { all() } else { short() }, |row, result| match result {
        Ok(Verified { compared, bytes, .. }) => {
            println!("{row}: {compared} are the truth's, {bytes} bytes");
        }
        Err(error) => wrong.push(format!("{row}: {error:#}")),
    })?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Returns the output of `pugmark` for a recording.
fn pugmark(arguments: &[&str], recording: &Path) -> Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_pugmark")).args(arguments).arg(recording).output()?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{arguments:?}: {}{text}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// The first calls of Linux's `start_kernel`.
const FIRST_CALLS: [&str; 3] = ["set_task_stack_end_magic", "cgroup_init_early", "boot_cpu_init"];

#[test]
fn a_probe_traces_the_boot_of_linux_from_the_first_instruction_as_the_log_has_it() -> Result<()> {
    let Some([kernel, busybox]) = debian() else { return Ok(()) };
    let scratch = Scratch::new()?;
    let mut guest = Guest::new(&busybox);
    guest.command(&["true".into()]);
    let monitor = Monitor { image: Images::build()?.monitor, options: "profile=skylake".into() };
    let initramfs = scratch.file("initramfs");
    std::fs::write(&initramfs, guest.files().archive()?)?;
    let machine = LinuxMachine {
        monitor: Some(monitor),
        probe: Some(INSTRUCTIONS),
        ..LinuxMachine::new(kernel, initramfs)
    };
    let outcome = machine.run(|_| {})?;
    let trace = outcome.probe.as_ref().expect("what the probe has traced");
    assert_eq!(trace.instructions(&outcome.truth), INSTRUCTIONS);
    let recording = scratch.file("boot.rec");
    trace.write(&recording, &outcome.truth, outcome.symbols.as_deref().expect("the kernel's symbols"))?;
    // The number and hash of the instructions of each part are the log's.
    pugmark(&["decode", "--check"], &recording)?;
    let calls = pugmark(&["calls", "--of", "start_kernel"], &recording)?;
    println!("{calls}");
    let names: Vec<_> = calls.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let places: Vec<_> = FIRST_CALLS.map(|name| names.iter().position(|found| *found == name)).into();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{calls}");
    Ok(())
}

/// Number of instructions that the probe traces.
const INSTRUCTIONS: u64 = 500_000;
