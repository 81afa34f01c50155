//! Writes to standard output. Failing to write is an error, unless the reader has closed its end.

use crate::text::printable;
use std::{
    env,
    io::{self, BufWriter, IsTerminal, Write},
    process::{Child, Command, Stdio},
};

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
    named(write(io::stdout().lock(), fill))
}

/// Bytes written at a time: the default capacity of a pipe on Linux.
const BUFFER_BYTES: usize = 1 << 16;

fn write(to: impl Write, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, to);
    fill(&mut out).and_then(|()| out.flush())
}

fn named(result: io::Result<()>) -> anyhow::Result<()> {
    result.map_err(|error| anyhow::Error::from(error).context(CANNOT_WRITE))
}

/// Writes all of the output to standard output, through a pager if that is a terminal: `$PUGMARK_PAGER`, `$PAGER` or
/// `less`. An empty name or `cat` means no pager.
///
/// # Errors
/// As [`print()`].
pub fn page(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let pager = if io::stdout().is_terminal() { start_pager() } else { None };
    let Some(mut pager) = pager else { return print(fill) };
    let result = pager.stdin.take().map_or(Ok(()), |stdin| write(stdin, fill));
    // A pager that is left before the end closes the pipe, and is waited for in any case.
    let waited = pager.wait().map(drop);
    named(result.and(waited))
}

/// Starts the pager that the environment names; `None` if there is none.
fn start_pager() -> Option<Child> {
    let named = env::var("PUGMARK_PAGER").or_else(|_| env::var("PAGER"));
    let mut command = match named.as_deref() {
        Ok("" | "cat") => return None,
        Ok(named) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", named]);
            shell
        }
        Err(_) => Command::new("less"),
    };
    if env::var_os("LESS").is_none() {
        // Leave at once if all fits on the screen, show colours, leave the text on the screen.
        command.env("LESS", "FRX");
    }
    command.stdin(Stdio::piped()).spawn().ok()
}

/// Writes a line to standard error. Characters that a terminal would obey are shown by their numbers. An error there
/// cannot be reported anywhere and is dropped.
pub fn tell(line: std::fmt::Arguments<'_>) {
    let text = line.to_string();
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}
