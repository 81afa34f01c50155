//! Answers requests: reads them from standard input, one per line, and writes a line of answer for each to standard
//! output.

use anyhow::Result;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

/// Answers each line of standard input with a line.
pub(super) fn run(answer: impl FnMut(usize, &str) -> String) -> Result<()> {
    answer_lines(io::stdin().lock(), io::stdout().lock(), answer)
}

/// Answers each line with a line. The closure also gets the line's number, from 1.
///
/// Answers are flushed whenever no more input is buffered, so that a program at the other end can wait for each answer.
pub(super) fn answer_lines(
    from: impl Read,
    to: impl Write,
    mut answer: impl FnMut(usize, &str) -> String,
) -> Result<()> {
    let (mut from, mut to) = (BufReader::new(from), BufWriter::new(to));
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if from.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        // Invalid UTF-8 becomes a character that is in no name.
        let text = String::from_utf8_lossy(&line);
        writeln!(to, "{}", answer(number, text.trim_end_matches(['\r', '\n'])))?;
        if from.buffer().is_empty() {
            to.flush()?;
        }
    }
    Ok(to.flush()?)
}
