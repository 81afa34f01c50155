//! Shows the instructions of an Intel PT trace.

use pugmark_ipt_programs::args::Args;
use pugmark_ipt_programs::ptxed::{self, Console, PtxedCommand, PtxedFailure};
use pugmark_tools::output::{self, ignore_closed_reader, tell};
use pugmark_tools::processors;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// The version of libipt's `ptxed` whose output format this program has.
const COMPATIBLE: &str = "2.3.0-devel";

fn main() -> ExitCode {
    let mut args = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let program = args.next().unwrap_or_else(|| "ptxed".into());
    let mut out = BufWriter::new(io::stdout().lock());
    let mut console = Console { program: &program, out: &mut out, err: &mut io::stderr() };
    let command = PtxedCommand::parse(Args::new(args), &mut console);
    let (result, status) = match command {
        Ok(PtxedCommand::Help) => (write!(out, "{}", ptxed::HELP), ExitCode::SUCCESS),
        Ok(PtxedCommand::Version) => {
            (writeln!(out, "{program}-{COMPATIBLE} / libipt-{COMPATIBLE}"), ExitCode::SUCCESS)
        }
        Ok(PtxedCommand::Processors) => (processors::list(&mut out), ExitCode::SUCCESS),
        Ok(PtxedCommand::Decode(options)) => (ptxed::decode(*options, &mut out), ExitCode::SUCCESS),
        Err(failure) => {
            let harmless = matches!(failure, PtxedFailure::Harmless(_));
            let status = if harmless { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            // An error here cannot be reported anywhere.
            let _ = write!(io::stderr(), "{}", failure.lines(&program));
            (Ok(()), status)
        }
    };
    match ignore_closed_reader(result.and(out.flush())) {
        Ok(()) => status,
        Err(error) => {
            tell(format_args!("{program}: {}: {error}.", output::CANNOT_WRITE));
            ExitCode::FAILURE
        }
    }
}
