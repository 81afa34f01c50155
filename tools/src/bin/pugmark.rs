//! Decodes traces to totals, and measures how fast.

use clap::{Parser, Subcommand};
use pugmark_tools::pugmark::{bench, decode, ibs, pmc};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use pugmark_tools::record::command as record;
use std::{io, process::ExitCode};

#[derive(Parser)]
#[command(name = "pugmark", about = "Decodes Intel Processor Trace and branch records", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Decode a trace and print what is in it
    Decode(decode::Options),
    /// Decode a trace from memory again and again and print how fast
    Bench(bench::Options),
    /// Program AMD's performance counters by libpfm's event names
    Pmc(pmc::Command),
    /// Print samples of AMD's Instruction Based Sampling
    Ibs(ibs::Options),
    /// Run a program and make a trace of it, on any processor
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    Record(record::Command),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Decode(options) => decode::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Pmc(command) => pmc::run(&command),
        Command::Ibs(options) => ibs::run(&options),
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        Command::Record(options) => record::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough is no error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pugmark: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
