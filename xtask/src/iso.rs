//! `cargo xtask iso`.

use anyhow::Result;
use clap::Args;
use pugmark_harness::cd;
use pugmark_harness::images::{Images, target_folder};
use std::path::PathBuf;

use crate::setup::{self, SetupOptions};

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
    let out = options.out.clone().unwrap_or_else(|| target_folder().join("pugmark.iso"));
    cd::make(&images.guest, &target_folder().join("iso"), &out)?;
    println!("{}", out.display());
    Ok(())
}
