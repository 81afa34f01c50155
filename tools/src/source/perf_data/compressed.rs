//! All records of a file and of those beside it, also records that are compressed (`perf record -z`): the contents of
//! the COMPRESSED records of a file are one stream of zstd.

use super::file::{self, PerfFile, RawRecord, RawRecords, kind};
use anyhow::{Result, ensure};
use std::io::Read;

/// The number of bytes that are decompressed at once.
const CHUNK: usize = 1 << 20;
/// The limit of decompressed records: this many times the compressed ones, and this much more.
const MOST_TIMES: usize = 256;
const MOST_MORE: usize = 1 << 26;
/// An empty last block, and room for a checksum. perf flushes its stream and never ends it, and the decoder holds back
/// the last bytes of a frame that has no end.
const END: &[u8] = &[1, 0, 0, 0, 0, 0, 0];

/// The stream in some records, one part after the other, and an end.
struct Joined<'a> {
    parts: std::slice::Iter<'a, &'a [u8]>,
    part: &'a [u8],
    at_end: bool,
}

impl Joined<'_> {
    /// Goes to the next part that is not empty. Returns false if all was read but the end.
    fn go_on(&mut self) -> bool {
        while self.part.is_empty() && !self.at_end {
            let next = self.parts.next();
            (self.part, self.at_end) = (next.copied().unwrap_or(END), next.is_none());
        }
        !self.at_end
    }
}

impl Read for Joined<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        self.go_on();
        self.part.read(to)
    }
}

/// Passes on all records of a file and of those beside it; those that are compressed come after all others of their
/// file. Returns why not all of it can be read, if that is so.
///
/// # Errors
/// If far more is compressed than a recording can have, or what `visit` returns.
pub(super) fn each_record(
    file: &PerfFile,
    visit: &mut dyn FnMut(&RawRecord<'_>) -> Result<()>,
) -> Result<Vec<String>> {
    let mut problems = each_of(file.records(), file.short(), visit)?;
    for (name, records) in file.beside() {
        let found = each_of(records, None, visit)?;
        problems.extend(found.into_iter().map(|problem| format!("{name}: {problem}")));
    }
    Ok(problems)
}

/// Passes on the records of one file; `short` says why the file ends within them.
fn each_of(
    mut records: RawRecords<'_>,
    short: Option<&str>,
    visit: &mut dyn FnMut(&RawRecord<'_>) -> Result<()>,
) -> Result<Vec<String>> {
    let mut compressed = vec![];
    for record in records.by_ref() {
        match record.kind {
            kind::COMPRESSED => compressed.push(record.body()),
            // The size of what is compressed comes first.
            kind::COMPRESSED2 => {
                let size = file::long(record.body(), 0).unwrap_or(0);
                let data = record.body().get(8..).unwrap_or_default();
                compressed.push(usize::try_from(size).ok().and_then(|size| data.get(..size)).unwrap_or(data));
            }
            _ => visit(&record)?,
        }
    }
    let end = if compressed.is_empty() { None } else { decompress(&compressed, visit)? };
    let short = short.filter(|_| records.cut.is_none()).map(str::to_owned);
    Ok(records.cut.into_iter().chain(short).chain(end).collect())
}

/// Decompresses a stream and passes on the records in it. If it does not end with a record, the reason is returned.
fn decompress(
    parts: &[&[u8]],
    visit: &mut dyn FnMut(&RawRecord<'_>) -> Result<()>,
) -> Result<Option<String>> {
    let compressed: usize = parts.iter().map(|part| part.len()).sum();
    let most = compressed.saturating_mul(MOST_TIMES).saturating_add(MOST_MORE);
    let mut joined = Joined { parts: parts.iter(), part: &[], at_end: false };
    let (mut bytes, mut done) = (vec![], 0_usize);
    // A frame may end, and another one follow.
    while joined.go_on() {
        let mut frame = match ruzstd::decoding::StreamingDecoder::new(&mut joined) {
            Ok(frame) => frame,
            Err(error) => return Ok(Some(format!("compressed records: {error}"))),
        };
        loop {
            let start = bytes.len();
            bytes.resize(start + CHUNK, 0);
            let read = frame.read(&mut bytes[start..]);
            bytes.truncate(start + *read.as_ref().unwrap_or(&0));
            let used = visit_all(&bytes, done, visit)?;
            done = done.saturating_add(used);
            ensure!(
                done <= most,
                "{compressed:#x} compressed bytes are more than {most:#x} bytes of records"
            );
            bytes.drain(..used);
            if bytes.len() > usize::from(u16::MAX) {
                return Ok(Some(no_record(done)));
            }
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return Ok(Some(format!("compressed records: {error}"))),
            }
        }
    }
    Ok((!bytes.is_empty()).then(|| no_record(done)))
}

/// Passes on the whole records in some bytes. Returns how many bytes these have.
fn visit_all(bytes: &[u8], at: usize, visit: &mut dyn FnMut(&RawRecord<'_>) -> Result<()>) -> Result<usize> {
    let mut records = RawRecords::new(bytes, at as u64, false);
    for record in records.by_ref() {
        visit(&record)?;
    }
    Ok(records.used())
}

fn no_record(done: usize) -> String {
    format!("compressed records: after {done:#x} bytes of them there is no record")
}
