//! Debian's kernels boot on every profile, sample and count, and report no problem with the processor.

use anyhow::{Result, ensure};
use pugmark_harness::linux::PERF;
use pugmark_harness::linux::boots::{LinuxBoot, one_a_profile};
use pugmark_harness::linux::packages;
use std::path::Path;

/// Boots every fourth of the profiles, from this one on, each with one kernel. `cargo xtask linux --boots` boots all.
fn boot_each_fourth(first: usize) -> Result<()> {
    if !Path::new(PERF).exists() {
        println!("skipped: there is no {PERF}");
        return Ok(());
    }
    let packages = packages::packages(true);
    for boot in one_a_profile().skip(first).step_by(4) {
        let LinuxBoot { kernel, .. } = boot;
        if packages.busybox().is_err() || packages.kernel_of(kernel).is_err() {
            println!("skipped: Debian's kernel {kernel} is not downloaded");
            return Ok(());
        }
        let booted = boot.run(&packages)?;
        println!("{boot}, {}: {:.1} s, {}", booted.version, booted.time.as_secs_f64(), booted.counters);
        ensure!(booted.complaints.is_empty(), "{boot}: {}", booted.complaints.join("\n"));
    }
    Ok(())
}

#[test]
fn linux_6_1_finds_nothing_wrong() -> Result<()> {
    boot_each_fourth(0)
}

#[test]
fn linux_6_1_with_preempt_rt_finds_nothing_wrong() -> Result<()> {
    boot_each_fourth(1)
}

#[test]
fn linux_6_12_finds_nothing_wrong() -> Result<()> {
    boot_each_fourth(2)
}

#[test]
fn linux_6_12_with_preempt_rt_finds_nothing_wrong() -> Result<()> {
    boot_each_fourth(3)
}
