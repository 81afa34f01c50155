//! Debian's kernels booted on every profile, their complaints, and the events that they cannot count.

use anyhow::{Context, Result, ensure};
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::{DebianKernel, Guest, LinuxMachine, Monitor, PERF, Packages};
use crate::expected::all_profiles;
use crate::images::Images;
use crate::scratch::Scratch;

/// Words of Linux's log by which it reports a problem with the processor, or with itself.
const COMPLAINTS: [&str; 9] = [
    "unchecked MSR",
    "WARNING:",
    "BUG:",
    "kernel BUG",
    "Oops",
    "general protection fault",
    "Kernel panic",
    "self-detected stall",
    "hard LOCKUP",
];

/// The words with which Linux's log introduces its counting hardware.
const COUNTERS: &str = "Performance Events: ";
/// Linux's words if there is no such hardware, or none that is modelled.
const NO_COUNTERS: &str = "software events only";

/// The commands that the guest runs. A precise sample of instructions, as perf requests it on Ice Lake, has made Linux
/// write to a register that the processor lacks; where samples are not precise, perf reports that. Without -N and -B
/// perf reads the kernel's symbols once more, which takes longer than the rest.
const COMMANDS: &str = "uname -r
perf record -N -B -e cpu/event=0xc0,umask=1/upp -c 2003 -o /tmp/samples -- true
perf stat -d -x, -o /out/counts -- true
dmesg >/out/dmesg
";

/// The events of `perf stat -d` that every processor with counters counts.
const COUNTED: [&str; 4] = ["cycles", "instructions", "branches", "branch-misses"];

/// Returns the profiles that run 64-bit code: those with workloads, and Tremont, which has none of its own.
pub fn profiles() -> impl Iterator<Item = &'static str> {
    all_profiles().chain(["tremont"])
}

/// Complaints of a kernel about a processor newer than the kernel, which a real one causes, too: the profile, the
/// beginning of the kernel's version, and words of the complaint.
///
/// Linux 6.12 determines the generation of a Zen processor by its model (`bsp_init_amd`) and warns about an unknown
/// one; models 50H to 5FH of family 1AH, Zen 6, are known from Linux 6.16 on (`X86_FEATURE_ZEN6`). Linux 6.1 does not
/// check.
const KNOWN: [(&str, &str, &str); 1] = [("zen6", "6.12.", "arch/x86/kernel/cpu/amd.c:550 bsp_init_amd")];

/// A kernel on a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinuxBoot {
    /// The kernel.
    pub kernel: DebianKernel,
    /// The profile's name.
    pub profile: &'static str,
}

impl fmt::Display for LinuxBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.kernel, self.profile)
    }
}

/// The outcome of a boot.
#[derive(Clone, Debug)]
pub struct Booted {
    /// The kernel's version, as `uname -r` prints it.
    pub version: String,
    /// Host time from the machine's start to the first program.
    pub time: Duration,
    /// The complaints in Linux's log, without those that a real processor causes, too, and the lines of `perf stat`
    /// that count nothing although there is something to count.
    pub complaints: Vec<String>,
    /// The counting hardware by Linux's log.
    pub counters: String,
}

/// Returns every kernel on every profile.
pub fn all() -> impl Iterator<Item = LinuxBoot> {
    profiles()
        .flat_map(|profile| DebianKernel::ALL.into_iter().map(move |kernel| LinuxBoot { kernel, profile }))
}

/// Returns one kernel for each profile, so that each kernel is booted on processors of both vendors.
pub fn one_a_profile() -> impl Iterator<Item = LinuxBoot> {
    let kernels = DebianKernel::ALL.into_iter().cycle();
    profiles().zip(kernels).map(|(profile, kernel)| LinuxBoot { kernel, profile })
}

impl LinuxBoot {
    /// Boots the kernel with the watchdog's cycle counter on, if the processor has one, lets perf sample and count, and
    /// reads Linux's log.
    ///
    /// # Errors
    /// If a package or an image is missing, or the machine does not run to its end.
    pub fn run(self, packages: &Packages) -> Result<Booted> {
        let scratch = Scratch::new()?;
        let mut guest = Guest::new(&packages.busybox()?);
        guest.add(&PERF.parse().map_err(anyhow::Error::msg)?)?;
        guest.script(COMMANDS);
        let initramfs = scratch.file("initramfs");
        fs::write(&initramfs, guest.files().archive()?)?;
        let machine = self.machine(packages.kernel_of(self.kernel)?, initramfs)?;
        let mut output = Vec::new();
        let outcome = machine.run(|event| {
            if let super::Event::Output(bytes) = event {
                output.extend_from_slice(bytes);
            }
        })?;
        ensure!(outcome.status == 0, "the guest's script ended with status {}", outcome.status);
        let log = String::from_utf8_lossy(outcome.file("dmesg")?).into_owned();
        let output = String::from_utf8(output).context("the guest's output is no UTF-8")?;
        let version = output.lines().next().context("the guest does not say which kernel it is")?;
        let counts = String::from_utf8_lossy(outcome.file("counts")?).into_owned();
        let counters =
            log.lines().find_map(|line| line.split_once(COUNTERS)).map_or("none", |(_, text)| text);
        let has_counters = counters != "none" && !counters.contains(NO_COUNTERS);
        let complaints = complaints(&log).filter(|line| !self.is_known(version, line));
        Ok(Booted {
            version: version.to_owned(),
            time: outcome.times[0],
            complaints: complaints.chain(not_counted(&counts, has_counters)).map(str::to_owned).collect(),
            counters: counters.to_owned(),
        })
    }

    /// Returns whether the kernel of this version complains alike on a real processor.
    fn is_known(self, version: &str, line: &str) -> bool {
        let is = |(profile, kernel, words): &(&str, &str, &str)| {
            self.profile == *profile && version.starts_with(kernel) && line.contains(words)
        };
        KNOWN.iter().any(is)
    }

    fn machine(self, kernel: PathBuf, initramfs: PathBuf) -> Result<LinuxMachine> {
        Ok(LinuxMachine {
            monitor: Some(Monitor {
                image: Images::build()?.monitor,
                options: format!("profile={} times=0", self.profile),
            }),
            // Linux counts ticks against the TSC to check its timer, but skips that if it knows that it is a guest: on
            // a busy host ticks come late.
            words: "nmi_watchdog=1 no_timer_check".into(),
            ..LinuxMachine::new(kernel, initramfs)
        })
    }
}

/// Returns the lines of Linux's log that are complaints.
fn complaints(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| COMPLAINTS.iter().any(|words| line.contains(words)))
}

/// Returns the lines of `perf stat -x,` without a count for an event that a processor with counters counts. If counters
/// are too few for all events, some were never counted.
fn not_counted(counts: &str, has_counters: bool) -> impl Iterator<Item = &str> {
    counts.lines().filter(move |line| {
        let mut fields = line.split(',');
        let (value, _, event) = (fields.next(), fields.next(), fields.next().unwrap_or_default());
        let name = event.trim_end_matches(":u");
        has_counters && COUNTED.contains(&name) && matches!(value, Some("0" | "<not supported>"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_counted_where_there_are_counters() {
        let counts = "# started\n\n52.8,msec,task-clock,52,100.00,1.5,CPUs utilized\n\
                      31647400,,cycles,52,100.00,0.5,GHz\n0,,instructions,52,100.00,,\n\
                      <not counted>,,branches,0,0.00,,\n<not supported>,,branch-misses:u,0,100.00,,\n\
                      0,,L1-dcache-loads,52,100.00,,\n0,,context-switches,52,100.00,,\n";
        let found: Vec<_> = not_counted(counts, true).map(|line| line.split(',').nth(2)).collect();
        assert_eq!(found, [Some("instructions"), Some("branch-misses:u")]);
        assert_eq!(not_counted(counts, false).count(), 0);
    }

    #[test]
    fn a_complaint_is_found_in_the_log() {
        let log = "[    0.1] Linux version 6.1\n\
                   [    0.2] unchecked MSR access error: WRMSR to 0x309 (tried to write 0x0)\n\
                   [    0.3] NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.\n\
                   [    0.4] WARNING: CPU: 0 PID: 1 at arch/x86/events/core.c:1\n\
                   [    0.5] BUG: kernel NULL pointer dereference, address: 0\n";
        let found: Vec<_> = complaints(log).map(|line| &line[..12]).collect();
        assert_eq!(found, ["[    0.2] un", "[    0.4] WA", "[    0.5] BU"]);
    }

    #[test]
    fn each_profile_is_booted_and_each_kernel_on_both_vendors_processors() {
        let names: Vec<_> = one_a_profile().map(|boot| boot.profile).collect();
        assert!(names.iter().copied().eq(profiles()));
        for kernel in DebianKernel::ALL {
            let on: Vec<_> = one_a_profile().filter(|boot| boot.kernel == kernel).collect();
            let amd = on.iter().filter(|boot| boot.profile.starts_with("zen")).count();
            assert!(amd > 0 && amd < on.len(), "{kernel}");
        }
        assert_eq!(all().count(), 4 * names.len());
    }
}
