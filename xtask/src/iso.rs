//! `cargo xtask iso`.

use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_harness::images::{Images, target_folder};
use std::path::PathBuf;
use std::process::Command;

use crate::setup::{self, SetupOptions};

/// GRUB's menu: the kernel, booted by multiboot2, and the same file as the module with its symbols.
const MENU: &str = "\
set timeout=0
menuentry pugmark {
    multiboot2 /boot/pugmark-boot
    module2 /boot/pugmark-boot
    boot
}
";

#[derive(Args)]
pub(crate) struct IsoOptions {
    #[command(flatten)]
    setup: SetupOptions,
    /// Where to write it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Makes an image that GRUB boots on BIOS and UEFI machines. The kernel writes to the first serial port.
pub(crate) fn iso(options: &IsoOptions) -> Result<()> {
    setup::prepare_grub(options.setup.no_install)?;
    let images = Images::build()?;
    let tree = target_folder().join("iso");
    let boot = tree.join("boot");
    std::fs::create_dir_all(boot.join("grub"))?;
    std::fs::copy(&images.guest, boot.join("pugmark-boot"))?;
    std::fs::write(boot.join("grub/grub.cfg"), MENU)?;
    let out = options.out.clone().unwrap_or_else(|| target_folder().join("pugmark.iso"));
    let output = Command::new("grub-mkrescue").arg("-o").arg(&out).arg(&tree).output();
    let output = output.context("cannot start grub-mkrescue")?;
    ensure!(output.status.success(), "grub-mkrescue failed:\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", out.display());
    Ok(())
}
