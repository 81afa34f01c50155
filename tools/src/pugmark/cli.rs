//! The command line of `pugmark`: its subcommands, and what is made of their descriptions.

use super::{
    annotate, bench, calls, coverage, decode, diff, flamegraph, gdb, ibs, last, manual, mem, pebs, pmc,
    report, script, timeline,
};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use super::{boot, record, stat};
use clap::{Parser, Subcommand};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "pugmark",
    about = "Records and decodes traces of what a processor executes",
    version,
    after_help = "\
Example:
  pugmark record -o ls.rec -- ls
  pugmark decode --check ls.rec"
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: PugmarkCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum PugmarkCommand {
    /// Decode a trace of Intel PT or branch records and print what it holds
    Decode(decode::DecodeOptions),
    /// Measure how fast a trace is decoded
    Bench(bench::BenchOptions),
    /// Show which code was executed, as a list or for fuzzers and disassemblers
    Coverage(coverage::CoverageOptions),
    /// Show how often each instruction of a function was executed, or each line of its source
    Annotate(annotate::AnnotateOptions),
    /// Print the calls that a function makes, in order
    Calls(calls::CallsOptions),
    /// Find where two runs part, and which functions they executed more or less of
    Diff(diff::DiffOptions),
    /// Show the calls and returns before the end of a trace
    Last(last::LastOptions),
    /// Let GDB step through a recording, forwards and backwards
    Gdb(gdb::GdbOptions),
    /// Draw which function ran when: as a page, for Perfetto, or for the Firefox profiler
    Timeline(timeline::TimelineOptions),
    /// Draw how much each chain of calls took, or write it as folded stacks
    Flamegraph(flamegraph::FlameOptions),
    /// Count what was executed by function, line of source, object file or thread
    Report(report::ReportOptions),
    /// Print each instruction that was executed, as perf script does
    Script(script::ScriptOptions),
    /// Encode events of AMD's performance counters by libpfm's names
    Pmc(pmc::PmcCommand),
    /// Print samples of AMD's Instruction Based Sampling (IBS)
    Ibs(ibs::IbsOptions),
    /// Show where accessed data came from, and which cache lines threads share, from samples of memory accesses
    Mem(mem::MemOptions),
    /// Print samples of PEBS that are in a trace of Intel PT
    Pebs(pebs::PebsOptions),
    /// Run a program and make an Intel PT trace of it, on any processor
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    Record(record::RecordCommand),
    /// Boot a kernel, a disk or a CD in QEMU, on virtual hardware that traces it; the exit status is QEMU's
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    Boot(boot::BootOptions),
    /// Count exactly what a program executes, without a trace
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    Stat(stat::StatCommand),
    /// Write the manual pages of all commands into a folder
    Man(manual::ManOptions),
    /// Print what a shell needs to complete the command line
    Completions(manual::CompletionsOptions),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn only_commands_that_do_nothing_but_decode_offer_layers_and_threads() {
        let cli = Cli::command();
        let offers = |command: &clap::Command, name: &str| {
            command.get_arguments().any(|argument| argument.get_long() == Some(name))
        };
        for name in ["layer", "threads"] {
            let with: Vec<_> = cli.get_subcommands().filter(|command| offers(command, name)).collect();
            let names: Vec<_> = with.iter().map(|command| command.get_name()).collect();
            assert_eq!(names, ["decode", "bench"], "{name}");
        }
    }
}
