//! Reading a trace from a file or a pipe.

use super::progress::Progress;
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// How much is read between two looks at the clock.
const CHUNK: usize = 1 << 20;

/// All bytes of the file, or of standard input for `-`.
///
/// # Errors
/// When they cannot be read.
pub fn load(path: &Path, progress: &mut Progress) -> io::Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        return read(io::stdin().lock(), None, progress);
    }
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    // A pipe has no size.
    read(file, (size > 0).then_some(size), progress)
}

fn read(mut from: impl Read, size: Option<u64>, progress: &mut Progress) -> io::Result<Vec<u8>> {
    progress.begin("reading", size);
    let mut bytes = Vec::with_capacity(size.map_or(CHUNK, |size| size as usize));
    while from.by_ref().take(CHUNK as u64).read_to_end(&mut bytes)? > 0 {
        progress.at(bytes.len() as u64);
    }
    progress.end();
    Ok(bytes)
}
