//! `perf record` in Debian's Linux on the monitor: what perf's own decoder and ours make of its file is what the monitor
//! logged.
//!
//! ```sh
//! PUGMARK_LONG=1 cargo test -p pugmark-tools --test linux -- --nocapture     # the whole table
//! ```

use anyhow::{Context, Result, ensure};
use pugmark_qemu_tests::images::Images;
use pugmark_qemu_tests::linux::packages::Packages;
use pugmark_qemu_tests::linux::{Guest, LinuxMachine, LinuxOutcome, Monitor};
use pugmark_qemu_tests::scratch::Scratch;
use pugmark_qemu_tests::time_limits::TimeLimits;
use pugmark_qemu_tests::truth::hash;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// perf, for the guest and for the host.
const PERF: &str = "/usr/bin/perf";

/// What a machine must have to boot Linux.
struct Linux {
    kernel: PathBuf,
    busybox: PathBuf,
}

impl Linux {
    /// Finds it; otherwise reports that the test is skipped.
    fn find() -> Option<Self> {
        let mut packages = Packages { no_install: true, tell: &mut |_| {} };
        let found = packages.kernel().and_then(|kernel| Ok(Self { kernel, busybox: packages.busybox()? }));
        if found.is_err() {
            println!("skipped: Debian's Linux is not installed");
        } else if !Path::new(PERF).exists() {
            println!("skipped: perf is not installed");
            return None;
        }
        found.ok()
    }

    /// Runs `perf record` with these arguments in a guest that has the profile's processor. Its file and the guest's
    /// files are in the folder afterwards.
    fn record(&self, profile: &str, arguments: &str, folder: &Path) -> Result<LinuxOutcome> {
        let mut guest = Guest::new(&self.busybox);
        guest.add(&PERF.parse().map_err(anyhow::Error::msg)?)?;
        let command = format!("perf record -o /out/perf.data {arguments}");
        guest.command(&command.split(' ').map(String::from).collect::<Vec<_>>());
        guest.files().write_to(&folder.join("root"))?;
        let initramfs = folder.join("initramfs");
        std::fs::write(&initramfs, guest.files().archive()?)?;
        let machine = LinuxMachine {
            kernel: self.kernel.clone(),
            initramfs,
            monitor: Some(Monitor {
                image: Images::build()?.monitor,
                options: format!("profile={profile} times=0"),
            }),
            processors: 1,
            memory: None,
            words: words_for(profile).into(),
            interactive: false,
            time_limits: TimeLimits::default(),
        };
        let outcome = machine.run(|_| {})?;
        ensure!(outcome.status == 0, "{command} ended with status {}", outcome.status);
        outcome.write_files(folder)?;
        Ok(outcome)
    }
}

/// What Linux must be told. icelake's CPUID promises a crystal clock and a TSC that are not the machine's, so that Linux
/// takes its timers for others than they are.
fn words_for(profile: &str) -> &'static str {
    if profile == "icelake" { "nolapic_timer clocksource=hpet" } else { "" }
}

/// The addresses that perf's decoder finds, and what it writes to standard error.
fn decoded_by_perf(folder: &Path) -> Result<(Vec<u64>, String)> {
    let mut command = Command::new(PERF);
    command.args(["script", "--itrace=i1i", "-F", "ip", "--symfs"]).arg(folder.join("root"));
    let output = command.arg("--input").arg(folder.join("perf.data")).output()?;
    ensure!(output.status.success(), "perf script: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let addresses = text.split_whitespace().map(|word| u64::from_str_radix(word, 16));
    let addresses =
        addresses.collect::<Result<_, _>>().context("perf script prints something else than addresses")?;
    Ok((addresses, String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Count and hash of what our decoder finds.
fn decoded_by_pugmark(folder: &Path) -> Result<(u64, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    command.args(["decode", "--json", "--symfs"]).arg(folder.join("root"));
    let output = command.arg(folder.join("perf.data")).output()?;
    ensure!(output.status.success(), "pugmark decode: {}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let count = json["instructions"].as_u64().context("no count")?;
    Ok((count, json["hash"].as_str().context("no hash")?.to_owned()))
}

/// Records, decodes and compares.
fn check(linux: &Linux, profile: &str, arguments: &str) -> Result<()> {
    let scratch = Scratch::new()?;
    let begin = Instant::now();
    let outcome = linux.record(profile, arguments, scratch.folder())?;
    let log = outcome.truth.session(0);
    // While the event is being scheduled perf itself may retire some, whose packets perf does not keep.
    let program = log.iter().rev().find(|record| record.flags.cpl() == 3).map(|record| record.cr3);
    let records = log.iter().filter(|record| record.flags.cpl() == 3 && Some(record.cr3) == program);
    let truth: Vec<u64> = records.map(|record| record.rip).collect();
    ensure!(truth.len() > 1000, "only {} instructions retired under tracing", truth.len());
    let (count, found) = decoded_by_pugmark(scratch.folder())?;
    let expected = (truth.len() as u64, format!("{:#018x}", hash(&truth)));
    ensure!(
        (count, &found) == (expected.0, &expected.1),
        "pugmark finds {count} {found}, the log has {expected:?}"
    );
    let (by_perf, says) = decoded_by_perf(scratch.folder())?;
    let [of_perf, expected] = [by_perf.len(), truth.len()];
    ensure!(
        by_perf == truth,
        "perf finds {of_perf} instructions, the log has {expected}: not the same ones; {says}"
    );
    println!(
        "{profile:16} {arguments:60} {count:8} instructions, {:7} bytes of perf.data, {:3.0} s",
        outcome.file("perf.data")?.len(),
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

#[test]
fn what_perf_and_pugmark_decode_of_a_program_in_linux_is_what_retired() -> Result<()> {
    let Some(linux) = Linux::find() else { return Ok(()) };
    check(&linux, "skylake", "--per-thread -e intel_pt//u -- gzip -k /etc/passwd")?;
    if std::env::var_os("PUGMARK_LONG").is_none_or(|value| value != "1") {
        return Ok(());
    }
    let rows = LONG_ROWS.iter().map(|(profile, arguments)| {
        check(&linux, profile, arguments).with_context(|| format!("{profile}: perf record {arguments}"))
    });
    let wrong: Vec<String> = rows.filter_map(|row| row.err()).map(|error| format!("{error:#}")).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The other rows of the table. Threads are traced, not CPUs: perf finds out by time which thread a CPU's trace is of, and
/// the guest's clock runs on while the monitor steps it.
const LONG_ROWS: [(&str, &str); 5] = [
    ("broadwell", "--per-thread -e intel_pt//u -- gzip -k /etc/passwd"),
    ("icelake", "--per-thread -e intel_pt//u -- gzip -k /etc/passwd"),
    ("skylake", "--per-thread -e intel_pt/noretcomp/u -- ls -l /bin"),
    ("skylake", "--per-thread -e intel_pt/cyc,mtc,tsc/u -- sha256sum /init"),
    ("skylake", "--per-thread -e intel_pt/tsc=0,mtc=0/u -- ls -l /"),
];
