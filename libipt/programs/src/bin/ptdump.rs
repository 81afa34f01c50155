//! Shows the packets of an Intel PT trace.

use pugmark_ipt_programs::args::{Args, UsageError};
use pugmark_ipt_programs::file::{FileError, FileRange};
use pugmark_ipt_programs::ptdump::{self, PtdumpCommand};
use pugmark_tools::output::{self, ignore_closed_reader, tell};
use pugmark_tools::processors;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// The version of libipt's `ptdump` whose output format this program has.
const COMPATIBLE: &str = "2.3.0-devel";

fn main() -> ExitCode {
    let mut args = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let program = args.next().unwrap_or_else(|| "ptdump".into());
    let mut out = BufWriter::new(io::stdout().lock());
    let result = run(&program, Args::new(args), &mut out);
    let flushed = out.flush();
    let failed = |status, error: &dyn std::fmt::Display| {
        tell(format_args!("{program}: {error}"));
        ExitCode::from(status)
    };
    match result {
        Err((status, error)) => failed(status, &error),
        Ok(result) => match ignore_closed_reader(result.and(flushed)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(1, &format_args!("{}: {error}.", output::CANNOT_WRITE)),
        },
    }
}

/// Runs the command. An outer error has the exit status; the inner result is that of writing the output.
fn run(program: &str, args: Args, out: &mut dyn Write) -> Result<io::Result<()>, (u8, UsageError)> {
    let failed = |error| (1, error);
    Ok(match PtdumpCommand::parse(args).map_err(failed)? {
        PtdumpCommand::Help => write!(out, "{}", ptdump::HELP),
        PtdumpCommand::Version => writeln!(out, "{program}-{COMPATIBLE} / libipt-{COMPATIBLE}"),
        PtdumpCommand::Processors => processors::list(out),
        PtdumpCommand::Dump { options, trace } => {
            let range: FileRange = trace.parse().map_err(|error: FileError| (2, error.into()))?;
            let errata = ptdump::errata(&options, out);
            let trace = range.load().map_err(|error| failed(error.into()))?;
            errata.and_then(|errata| ptdump::dump(&trace, *options, errata, out))
        }
    })
}
