//! Shows the packets of an Intel PT trace.

use pugmark_tools::args::{Args, Usage};
use pugmark_tools::file::{self, FileRange};
use pugmark_tools::ptdump::{self, Command};
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// What the output's format is that of.
const COMPATIBLE: &str = "2.3.0-devel";

fn main() -> ExitCode {
    let mut args = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let program = args.next().unwrap_or_else(|| "ptdump".into());
    match run(&program, Args::new(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err((status, error)) => {
            eprintln!("{program}: {error}");
            ExitCode::from(status)
        }
    }
}

fn run(program: &str, args: Args) -> Result<(), (u8, Usage)> {
    let failed = |error| (1, error);
    let mut out = BufWriter::new(io::stdout().lock());
    // A reader that has seen enough is no error.
    let _ = match Command::parse(args).map_err(failed)? {
        Command::Help => write!(out, "{}", ptdump::HELP),
        Command::Version => writeln!(out, "{program}-{COMPATIBLE} / libipt-{COMPATIBLE}"),
        Command::Dump { options, trace } => {
            let range: FileRange = trace.parse().map_err(|error: file::Error| (2, error.into()))?;
            let trace = range.load().map_err(|error| failed(error.into()))?;
            ptdump::dump(&trace, *options, &mut out)
        }
    };
    let _ = out.flush();
    Ok(())
}
