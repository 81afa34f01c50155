//! Makes, decodes and measures traces, and helps with AMD's counters and samples.

use anyhow::{Context, Error, Result};
use clap::Parser;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use pugmark_tools::pugmark::{boot, record, stat};
use pugmark_tools::{
    output::{self, ignore_closed_reader, print, tell},
    processors,
    pugmark::{
        annotate, bench, calls,
        cli::{Cli, PugmarkCommand},
        coverage, decode, diff, flamegraph, gdb, ibs, last, manual, mem, pebs, pmc, report, script, timeline,
    },
};
use std::{
    io::{self, Write},
    process::ExitCode,
};

fn main() -> ExitCode {
    if lists_processors() {
        return end(print(processors::list).map(|()| ExitCode::SUCCESS), |_| 1);
    }
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(refusal) => return refuse(&refusal),
    };
    let done = |result: Result<()>| result.map(|()| ExitCode::SUCCESS);
    let result = match &command {
        PugmarkCommand::Decode(options) => decode::run(options),
        PugmarkCommand::Bench(options) => done(bench::run(options)),
        PugmarkCommand::Coverage(options) => coverage::run(options),
        PugmarkCommand::Annotate(options) => annotate::run(options),
        PugmarkCommand::Calls(options) => calls::run(options),
        PugmarkCommand::Last(options) => last::run(options),
        PugmarkCommand::Gdb(options) => gdb::run(options),
        PugmarkCommand::Timeline(options) => timeline::run(options),
        PugmarkCommand::Flamegraph(options) => flamegraph::run(options),
        PugmarkCommand::Report(options) => report::run(options),
        PugmarkCommand::Script(options) => script::run(options),
        PugmarkCommand::Diff(options) => diff::run(options),
        PugmarkCommand::Pmc(command) => done(pmc::run(command)),
        PugmarkCommand::Ibs(options) => done(ibs::run(options)),
        PugmarkCommand::Mem(options) => mem::run(options),
        PugmarkCommand::Pebs(options) => pebs::run(options),
        PugmarkCommand::Man(options) => done(manual::man(options)),
        PugmarkCommand::Completions(options) => done(manual::completions(options)),
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        PugmarkCommand::Record(options) => record::run(options).map(ExitCode::from),
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        PugmarkCommand::Boot(options) => boot::run(options).map(ExitCode::from),
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        PugmarkCommand::Stat(options) => stat::run(options).map(ExitCode::from),
    };
    end(result, failure_of(&command))
}

/// Returns the function that gives an error of this command its exit status.
fn failure_of(command: &PugmarkCommand) -> fn(&Error) -> u8 {
    match command {
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        PugmarkCommand::Record(_) => record::failure,
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        PugmarkCommand::Boot(_) => boot::failure,
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        PugmarkCommand::Stat(_) => stat::failure,
        _ => |_| 1,
    }
}

/// Returns whether the options of `decode` or `bench` hold `--cpu list` anywhere; it needs no trace.
fn lists_processors() -> bool {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let decodes = words.first().is_some_and(|word| word == "decode" || word == "bench");
    let in_two = |pair: &[std::ffi::OsString]| pair[0] == "--cpu" && pair[1] == "list";
    decodes && (words.windows(2).any(in_two) || words.iter().any(|word| word == "--cpu=list"))
}

/// Returns the exit status of a result after all output is written.
fn end(result: Result<ExitCode>, failure: fn(&Error) -> u8) -> ExitCode {
    let flushed = result.and_then(|status| {
        io::stdout().flush().context(output::CANNOT_WRITE)?;
        Ok(status)
    });
    match flushed {
        Ok(status) => status,
        // A reader that has closed its end is no error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("pugmark: {error:#}"));
            ExitCode::from(failure(&error))
        }
    }
}

/// Reports what is wrong with the command line, or prints the help that it requests.
fn refuse(refusal: &clap::Error) -> ExitCode {
    let printed = ignore_closed_reader(refusal.print());
    if refusal.use_stderr() {
        // Below 125, the exit statuses of `record` and `boot` are those of the traced program.
        let runs = std::env::args_os().nth(1).is_some_and(|word| word == "record" || word == "boot");
        return ExitCode::from(if runs { 125 } else { 2 });
    }
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("pugmark: {}: {error}", output::CANNOT_WRITE));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
