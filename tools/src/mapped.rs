//! Large files, as memory that the system fills when it is read.

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};

/// A file whose bytes are read when they are used. [`forget`](Self::forget) gives back the memory of those that were.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps a regular file, of which nothing may be cut off while the value exists.
    ///
    /// # Errors
    /// If the system cannot map it.
    pub fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the bytes are only read, and traces are written once; a file that another program cuts off meanwhile
        // ends this one by a signal, as it would end the decoding by an error.
        unsafe { Mmap::map(file) }.map(Self)
    }

    /// Gives back the memory of some bytes. They are read from the file again if they are needed.
    pub fn forget(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        if bytes.end <= self.0.len() && !bytes.is_empty() {
            let forget = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the mapping is shared and never written, so the pages are filled with the same bytes again.
            let _ = unsafe { self.0.unchecked_advise_range(forget, bytes.start, bytes.len()) };
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_were_forgotten_are_the_same_when_they_are_read_again() {
        let name = std::env::temp_dir().join(format!("pugmark-mapped-{}", std::process::id()));
        let bytes: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
        std::fs::write(&name, &bytes).unwrap();
        let mapped = MappedFile::new(&File::open(&name).unwrap()).unwrap();
        std::fs::remove_file(&name).unwrap();
        for range in [0..0, 0..4096, 5000..60_001, 0..100_000, 99_999..100_000, 7..200_000] {
            mapped.forget(range.clone());
            assert!(*mapped == *bytes, "{range:?}");
        }
    }
}
