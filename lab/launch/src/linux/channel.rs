//! The stream of a guest's second serial port: the command's output, then its status and the files that it left.
//!
//! A mark is a line that begins with [`MARK`]; the bytes between the marks `begin` and `exit` are output. `file` is
//! followed by as many bytes as it tells, `pages` by eight bytes for each page of the file (see [`super::pages`]).

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use std::io::{BufRead, Read};

use super::pages::entries_len;

/// The beginning of a mark: the record separator of ASCII, and a name.
const MARK: &[u8] = b"\x1epugmark ";

/// An item that a guest has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The command begins, this many seconds after Linux by the guest's clock.
    Begin { uptime: String },
    /// Some of the command's output.
    Output(Vec<u8>),
    /// The command has ended.
    Exit { status: i32, uptime: String },
    /// A file, by its path below `/out`.
    File { path: String, bytes: Vec<u8> },
    /// The location of a file in memory, its size and its checksum.
    Pages { path: String, size: u64, sum: String, entries: Vec<u8> },
    /// The end of the stream.
    End,
}

/// Reads the stream of a guest and passes its items to `take`, output as soon as it arrives, until the guest reports
/// the end.
///
/// # Errors
/// If the guest ends before that, breaks the format, or a file's checksum is wrong; or an error of `take`.
pub(crate) fn receive(mut from: impl BufRead, mut take: impl FnMut(Sent) -> Result<()>) -> Result<()> {
    let mut has_begun = false;
    loop {
        let bytes = from.fill_buf()?;
        ensure!(!bytes.is_empty(), "the guest ended before it had sent everything");
        let until = bytes.iter().position(|&byte| byte == MARK[0]).unwrap_or(bytes.len());
        if until > 0 {
            // Output of the serial port before Linux drives it is not the command's.
            if has_begun {
                take(Sent::Output(bytes[..until].into()))?;
            }
            from.consume(until);
            continue;
        }
        match mark(&mut from)? {
            Err(other) if has_begun => take(Sent::Output(other))?,
            Err(_) => {}
            Ok(line) => {
                let sent =
                    parse(&line, &mut from).with_context(|| format!("in the guest's mark {line:?}"))?;
                has_begun = matches!(sent, Sent::Begin { .. });
                let is_end = sent == Sent::End;
                take(sent)?;
                if is_end {
                    return Ok(());
                }
            }
        }
    }
}

/// Reads a mark, and returns the rest of its line; or the bytes, if they are no mark.
fn mark(from: &mut impl BufRead) -> Result<Result<String, Vec<u8>>> {
    let mut bytes = Vec::new();
    for &expected in MARK {
        let Some(&next) = from.fill_buf()?.first() else { break };
        if next != expected {
            return Ok(Err(bytes));
        }
        bytes.push(next);
        from.consume(1);
    }
    let mut line = String::new();
    from.read_line(&mut line)?;
    ensure!(line.ends_with('\n'), "the guest ended within a mark");
    Ok(Ok(line.trim_end().to_owned()))
}

/// Parses a mark, and reads the bytes that belong to it.
fn parse(line: &str, from: &mut impl Read) -> Result<Sent> {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().context("a word is missing");
    Ok(match word()? {
        "begin" => Sent::Begin { uptime: word()?.into() },
        "exit" => Sent::Exit { status: word()?.parse()?, uptime: word()?.into() },
        "file" => {
            let (size, sum, path): (u64, _, _) = (word()?.parse()?, word()?, word()?.to_owned());
            let bytes = exactly(size, from)?;
            check(&bytes, sum)?;
            Sent::File { path, bytes }
        }
        "pages" => {
            let (size, sum, path): (u64, _, _) = (word()?.parse()?, word()?.to_owned(), word()?.to_owned());
            Sent::Pages { path, size, sum, entries: exactly(entries_len(size), from)? }
        }
        "end" => Sent::End,
        other => bail!("{other:?} is not known"),
    })
}

/// Reads `size` bytes.
fn exactly(size: u64, from: &mut impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(size).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 == size, "only {} of {size} bytes came", bytes.len());
    Ok(bytes)
}

/// Verifies the checksum of a file.
pub(super) fn check(bytes: &[u8], sum: &str) -> Result<()> {
    let found = checksum(bytes);
    ensure!(found == sum, "the checksum is {found} instead of {sum}");
    Ok(())
}

/// Returns the SHA-256, as `sha256sum` prints it.
pub(super) fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    /// A stream with checksums from `sha256sum`.
    const STREAM: &[u8] = b"noise\x1epugmark begin 1.25\nhello\x1e\x1epug\x1epugmark exit 3 2.50\n\
        \x1epugmark file 9 15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225 a b/c\n123456789\
        \x1epugmark file 0 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 empty\n\
        \x1epugmark pages 4097 0123 large\n0123456789abcdef\x1epugmark end\nnoise";

    fn received(stream: &[u8], capacity: usize) -> Result<Vec<Sent>> {
        let mut all: Vec<Sent> = Vec::new();
        receive(BufReader::with_capacity(capacity, stream), |sent| {
            match (all.last_mut(), sent) {
                (Some(Sent::Output(last)), Sent::Output(more)) => last.extend(more),
                (_, sent) => all.push(sent),
            }
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn output_and_files_come_as_they_were_in_pieces_of_any_size() {
        let expected = [
            Sent::Begin { uptime: "1.25".into() },
            Sent::Output(b"hello\x1e\x1epug".into()),
            Sent::Exit { status: 3, uptime: "2.50".into() },
            Sent::File { path: "a b/c".into(), bytes: b"123456789".into() },
            Sent::File { path: "empty".into(), bytes: vec![] },
            Sent::Pages {
                path: "large".into(),
                size: 4097,
                sum: "0123".into(),
                entries: b"0123456789abcdef".into(),
            },
            Sent::End,
        ];
        for capacity in 1..STREAM.len() {
            assert_eq!(received(STREAM, capacity).unwrap(), expected, "{capacity}");
        }
    }

    #[test]
    fn a_stream_that_is_cut_anywhere_is_refused() {
        for end in 0..STREAM.len() - b"\nnoise".len() {
            assert!(received(&STREAM[..end], 7).is_err(), "{end}");
        }
    }

    #[test]
    fn a_file_with_another_byte_is_refused() {
        let text = String::from_utf8(STREAM.into()).unwrap().replace("123456789", "123456780");
        let error = format!("{:#}", received(text.as_bytes(), 64).unwrap_err());
        assert!(error.contains("a b/c") && error.contains("instead of 15e2b0"), "{error}");
        let error = format!("{:#}", received(b"\x1epugmark x\n", 64).unwrap_err());
        assert!(error.contains("\"x\" is not known"), "{error}");
    }
}
