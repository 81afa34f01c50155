//! Writes to standard output. Failing to write is an error, unless the reader has closed its end.

use std::io::{self, BufWriter, Write};

/// The message of a program whose output cannot be written.
pub const CANNOT_WRITE: &str = "the output cannot be written";

/// Drops the error that says that the reader has closed its end of the pipe.
///
/// # Errors
/// All others.
pub fn ignore_closed_reader(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes all of the output to standard output.
///
/// # Errors
/// If it cannot be written, including [`BrokenPipe`](io::ErrorKind::BrokenPipe).
pub fn print(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let result = fill(&mut out).and_then(|()| out.flush());
    result.map_err(|error| anyhow::Error::from(error).context(CANNOT_WRITE))
}

/// Writes a line to standard error. An error there cannot be reported anywhere and is dropped.
pub fn tell(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
