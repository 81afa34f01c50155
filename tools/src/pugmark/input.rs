//! Reads a trace from a file or a pipe.

use super::progress::{Progress, Size};
use crate::file::open_finite;
use crate::mapped::MappedFile;
use crate::source::perf_data::AuxTrace;
use std::{
    io::{self, Read},
    ops::Deref,
    path::Path,
    sync::Arc,
};

/// The largest number of bytes to read between two checks of the clock; a pipe may return fewer.
const CHUNK: usize = 1 << 18;

/// The size from which on a file is mapped instead of read.
const MAPPED: u64 = 1 << 24;

/// The bytes of a trace.
#[derive(Debug)]
pub enum TraceBytes {
    /// They are in memory.
    Read(Vec<u8>),
    /// They are in a file, and in memory only while they are decoded.
    Mapped(MappedFile),
    /// They are a part of a file of `perf record`.
    Shared(Arc<AuxTrace>),
}

impl TraceBytes {
    /// Returns the file, if it is mapped.
    pub fn mapped(&self) -> Option<&MappedFile> {
        match self {
            Self::Mapped(file) => Some(file),
            Self::Read(_) | Self::Shared(_) => None,
        }
    }
}

impl Deref for TraceBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Mapped(file) => file,
            Self::Shared(trace) => &trace.bytes,
        }
    }
}

/// Reads all bytes of the file, or of standard input for `-`. A large file is mapped.
///
/// # Errors
/// If they cannot be read.
pub fn load(path: &Path, progress: &mut Progress) -> io::Result<TraceBytes> {
    if path.as_os_str() == "-" {
        return read(io::stdin().lock(), None, progress).map(TraceBytes::Read);
    }
    let file = open_finite(path)?;
    let data = file.metadata()?;
    let size = data.len();
    if data.is_file()
        && size >= MAPPED
        && let Ok(mapped) = MappedFile::new(&file)
    {
        return Ok(TraceBytes::Mapped(mapped));
    }
    // A pipe has no size.
    read(file, (size > 0).then_some(size), progress).map(TraceBytes::Read)
}

fn read(mut from: impl Read, size: Option<u64>, progress: &mut Progress) -> io::Result<Vec<u8>> {
    progress.begin("reading", size.map_or(Size::Unknown, Size::Bytes));
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size.map_or(CHUNK, |size| usize::try_from(size).unwrap_or(usize::MAX)))?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                bytes.extend_from_slice(&chunk[..count]);
                progress.at(bytes.len() as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    progress.end();
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what the list says, one for each call.
    struct Pipe(Vec<io::Result<&'static [u8]>>);

    impl Read for Pipe {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let bytes = if self.0.is_empty() { &[][..] } else { self.0.remove(0)? };
            to[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        }
    }

    #[test]
    fn a_signal_does_not_end_reading_and_another_error_does() {
        let bar = indicatif::ProgressBar::hidden();
        let with = |kind: io::ErrorKind| {
            let pipe = Pipe(vec![Ok(b"one"), Err(kind.into()), Ok(b"two")]);
            read(pipe, None, &mut Progress::in_bar(&bar)).map_err(|error| error.kind())
        };
        assert_eq!(with(io::ErrorKind::Interrupted), Ok(b"onetwo".to_vec()));
        assert_eq!(with(io::ErrorKind::TimedOut), Err(io::ErrorKind::TimedOut));
    }
}
