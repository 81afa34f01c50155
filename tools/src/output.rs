//! Standard output: what cannot be written is an error, unless its reader has seen enough and gone.

use std::io::{self, BufWriter, Write};

/// What a program says when its output cannot be written.
pub const FAILED: &str = "the output cannot be written";

/// Takes away the error that nobody reads any more.
///
/// # Errors
/// All others.
pub fn written(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes to standard output, to its end.
///
/// # Errors
/// When it cannot be written, also [`BrokenPipe`](io::ErrorKind::BrokenPipe).
pub fn print(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let result = fill(&mut out).and_then(|()| out.flush());
    result.map_err(|error| anyhow::Error::from(error).context(FAILED))
}

/// Says something on standard error. Where even that cannot be written, nobody can be told.
pub fn tell(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
