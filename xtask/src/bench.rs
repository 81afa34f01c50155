//! `cargo xtask bench`.

use anyhow::{Context, Result};
use clap::Args;
use pugmark_bench::BenchOptions;
use pugmark_builds::cargo;
use pugmark_harness::images::workspace;
use std::process::ExitCode;

use crate::setup::{self, SetupOptions};

/// The options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct BenchCommand {
    #[command(flatten)]
    bench: BenchOptions,
    #[command(flatten)]
    setup: SetupOptions,
}

/// Runs `cargo xtask bench`. An unoptimised build builds and runs an optimised one, because the measured decoder is
/// part of this program.
pub(crate) fn bench(command: &BenchCommand) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        let mut optimised = cargo::command(&["run", "--release", "--quiet", "--locked", "--manifest-path"]);
        optimised.arg(workspace().join("Cargo.toml")).args(["--package", "pugmark-xtask", "--"]);
        // Paths among the options are relative to the caller's folder.
        optimised.args(std::env::args_os().skip(1)).current_dir(std::env::current_dir()?);
        let passed = optimised.status().context("cannot start cargo")?.success();
        return Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if command.bench.decode.is_none() {
        setup::prepare_bench(command.bench.instructions, command.setup.no_install)?;
    }
    pugmark_bench::bench(&command.bench)?;
    Ok(ExitCode::SUCCESS)
}
