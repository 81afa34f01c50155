//! `cargo xtask`: one command for each thing that one does with Pugmark.

#[cfg(test)]
mod action;
mod api;
mod bare;
mod bench;
mod book;
mod capi;
mod ci;
#[cfg(test)]
mod circles;
mod deny;
#[cfg(test)]
mod examples;
mod fuzz;
mod iso;
#[cfg(test)]
mod lines;
mod linux;
mod miri;
#[cfg(test)]
mod names;
mod nightly;
mod oldest_toolchain;
mod package;
mod portable;
mod run;
mod sanitize;
mod setup;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

use setup::SetupOptions;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, boots, traces and tests Pugmark", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boot the kernel in QEMU, let it trace itself, and hold its decode against the truth
    Run(run::RunOptions),
    /// Boot Debian's Linux on the virtual hardware, and run a command in it, such as `perf record -e intel_pt//u`
    Linux(linux::LinuxOptions),
    /// Run every test: host, model, QEMU, documentation
    Test(test::TestOptions),
    /// Run what CI runs: format, clippy, documentation, all tests, mutants of what has changed
    Ci(SetupOptions),
    /// Run commands of this list on a bare Debian system, which is made for it: README's two, without others
    Bare(bare::BareOptions),
    /// Make a disk image for a USB stick or a CD: the kernel alone, for a machine that has the tracing hardware
    Iso(iso::IsoOptions),
    /// Measure the decoder's layers beside libipt's
    Bench(bench::BenchCommand),
    /// Install our libipt.so.2 beside the system's, remove it, or make a Debian package of it
    Capi(capi::CapiOptions),
    /// Try to break what must hold on any input, one target after the other
    Fuzz(fuzz::FuzzOptions),
    /// Check the lists of the libraries' public items, or write them; needs a nightly toolchain
    Api(api::ApiOptions),
    /// Run unit tests of driver and decoder in Miri; needs a nightly toolchain with Miri
    Miri(miri::MiriOptions),
    /// Run the tests of libipt.so.2 and of the recorder's plugin with AddressSanitizer; needs the same
    Sanitize,
    /// Check licences, sources and known faults of the libraries that are built in, by cargo-deny
    Deny(SetupOptions),
    /// Make a book of the documentation by mdbook, and check its links
    Book(SetupOptions),
    /// Test decoder and views for aarch64 in an emulator, and check them for Windows and macOS
    Portable(SetupOptions),
    /// Try to publish the crates without doing it, make a Debian package of the programs, or all files of a release
    Package(package::PackageOptions),
    /// Find small changes of a crate, or of the lines that differ from a commit, that no test notices
    Mutants(pugmark_mutants::MutantsOptions),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Linux(options) => linux::linux(&options),
        Command::Test(options) => test::test(&options).map(|_| ExitCode::SUCCESS),
        Command::Ci(options) => ci::ci(options).map(|()| ExitCode::SUCCESS),
        Command::Bare(options) => bare::bare(&options),
        Command::Iso(options) => iso::iso(&options).map(|()| ExitCode::SUCCESS),
        Command::Bench(options) => bench::bench(&options),
        Command::Capi(options) => capi::capi(&options).map(|()| ExitCode::SUCCESS),
        Command::Fuzz(options) => fuzz::fuzz(&options),
        Command::Api(options) => api::api(&options).map(|()| ExitCode::SUCCESS),
        Command::Miri(options) => miri::miri(&options).map(|()| ExitCode::SUCCESS),
        Command::Sanitize => sanitize::sanitize().map(|skipped| {
            skipped.iter().for_each(|reason| println!("skipped: {reason}"));
            ExitCode::SUCCESS
        }),
        Command::Deny(options) => deny::deny(options).map(|()| ExitCode::SUCCESS),
        Command::Book(options) => book::book(options).map(|()| ExitCode::SUCCESS),
        Command::Portable(options) => portable::portable(options).map(|()| ExitCode::SUCCESS),
        Command::Package(options) => package::package(&options).map(|()| ExitCode::SUCCESS),
        Command::Mutants(options) => pugmark_mutants::mutants(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
