//! A cache of parts of files, each read once.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Parts of files that contain code. Each part of a file is one section, however often it is added. Its bytes are read
/// when they are first needed.
///
/// ```
/// use pugmark_ipt_programs::code::{CacheError, SectionCache};
///
/// let mut cache = SectionCache::default();
/// assert!(matches!(cache.add("no-such-file".as_ref(), 0, 16), Err(CacheError::Open(_))));
/// ```
#[derive(Debug)]
pub struct SectionCache {
    sections: Vec<CachedSection>,
    by_range: HashMap<(PathBuf, u64, u64), SectionId>,
    /// The number of bytes that can still be added.
    left: u64,
}

/// The number of a section in its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SectionId(usize);

#[derive(Debug)]
struct CachedSection {
    file: PathBuf,
    offset: u64,
    len: u64,
    bytes: OnceCell<Vec<u8>>,
}

/// An error in adding a part of a file.
#[derive(Debug)]
pub enum CacheError {
    /// The file cannot be opened.
    Open(io::Error),
    /// The file ends before the part begins.
    Offset {
        /// The file's size in bytes.
        size: u64,
    },
    /// The cache is full.
    Full,
}

/// The maximum number of sections, that of libipt's cache.
const MOST_SECTIONS: usize = u16::MAX as usize;
/// The default limit of the total number of bytes.
const MOST_BYTES: u64 = 1 << 32;

impl Default for SectionCache {
    /// Makes a cache for 4 GiB.
    fn default() -> Self {
        Self::with_limit(MOST_BYTES)
    }
}

impl SectionCache {
    /// Makes a cache for `bytes` bytes in total.
    #[must_use]
    pub fn with_limit(bytes: u64) -> Self {
        Self { sections: Vec::new(), by_range: HashMap::new(), left: bytes }
    }

    /// Adds a section: `len` bytes of a file from `offset`, or fewer if the file ends before. Only the file's size is
    /// read here; its bytes are read later.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn add(&mut self, file: &Path, offset: u64, len: u64) -> Result<SectionId, CacheError> {
        let size = fs::metadata(file).map_err(CacheError::Open)?.len();
        let len =
            len.min(size.checked_sub(offset).filter(|left| *left > 0).ok_or(CacheError::Offset { size })?);
        self.insert(file, offset, len, OnceCell::new())
    }

    /// Adds a section whose bytes the caller has already read.
    ///
    /// # Errors
    /// [`CacheError::Full`].
    pub fn add_bytes(&mut self, file: &Path, offset: u64, bytes: Vec<u8>) -> Result<SectionId, CacheError> {
        self.insert(file, offset, bytes.len() as u64, OnceCell::from(bytes))
    }

    fn insert(
        &mut self,
        file: &Path,
        offset: u64,
        len: u64,
        bytes: OnceCell<Vec<u8>>,
    ) -> Result<SectionId, CacheError> {
        let range = (file.to_path_buf(), offset, len);
        if let Some(known) = self.by_range.get(&range) {
            return Ok(*known);
        }
        let left = self.left.checked_sub(len).filter(|_| self.sections.len() < MOST_SECTIONS);
        self.left = left.ok_or(CacheError::Full)?;
        let id = SectionId(self.sections.len());
        self.sections.push(CachedSection { file: range.0.clone(), offset, len, bytes });
        self.by_range.insert(range, id);
        Ok(id)
    }

    /// Returns the section's bytes; fewer if the file has become shorter or can no longer be read.
    #[must_use]
    pub fn bytes(&self, id: SectionId) -> &[u8] {
        let Some(section) = self.sections.get(id.0) else { return &[] };
        section.bytes.get_or_init(|| section.read().unwrap_or_default())
    }
}

impl CachedSection {
    fn read(&self) -> io::Result<Vec<u8>> {
        // Opening anything but a regular file may block or have side effects.
        if !fs::metadata(&self.file)?.is_file() {
            return Ok(Vec::new());
        }
        let mut file = File::open(&self.file)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(self.len).unwrap_or(usize::MAX))?;
        file.take(self.len).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_file_is_one_section_clipped_to_the_file() {
        let file = std::env::temp_dir().join(format!("pugmark-cache-{}", std::process::id()));
        fs::write(&file, [0, 1, 2, 3]).unwrap();
        let mut cache = SectionCache::with_limit(6);
        let all = cache.add(&file, 0, 4).unwrap();
        assert_eq!(cache.add(&file, 0, u64::MAX).unwrap(), all);
        let part = cache.add(&file, 2, 100).unwrap();
        assert_eq!((cache.bytes(all), cache.bytes(part)), (&[0, 1, 2, 3][..], &[2, 3][..]));
        assert!(matches!(cache.add(&file, 4, 1), Err(CacheError::Offset { size: 4 })));
        // All six bytes are in use.
        assert!(matches!(cache.add(&file, 1, 1), Err(CacheError::Full)));
        assert_eq!(cache.add(&file, 2, 2).unwrap(), part);
        fs::remove_file(&file).unwrap();
        assert!(matches!(cache.add(&file, 0, 4), Err(CacheError::Open(_))));
        assert_eq!(cache.bytes(all), [0, 1, 2, 3]);
    }

    #[test]
    fn there_are_as_many_sections_as_libipt_has_place_for() {
        let mut cache = SectionCache::default();
        let mut add = |offset| cache.add_bytes("file".as_ref(), offset, Vec::new());
        let first = add(0).unwrap();
        assert!((1..0xffff).all(|offset| add(offset).is_ok()));
        assert!(matches!(add(0xffff), Err(CacheError::Full)));
        // A section that is already cached needs no space.
        assert_eq!(add(0).unwrap(), first);
    }

    #[test]
    fn bytes_are_promised_up_to_the_limit_and_not_twice() {
        let mut cache = SectionCache::with_limit(6);
        let mut add = |offset, len: usize| cache.add_bytes("file".as_ref(), offset, vec![0; len]);
        assert!(matches!(add(0, 7), Err(CacheError::Full)));
        let first = add(0, 4).unwrap();
        assert!(matches!(add(4, 3), Err(CacheError::Full)));
        assert_eq!(add(0, 4).unwrap(), first);
        // Another file, offset or length makes another section.
        let second = add(4, 2).unwrap();
        assert_ne!(second, first);
        assert_ne!(add(4, 0).unwrap(), second);
        assert!(matches!(cache.add_bytes("other".as_ref(), 0, vec![0; 4]), Err(CacheError::Full)));
        let mut cache = SectionCache::default();
        assert!(cache.insert("file".as_ref(), 0, (1 << 32) + 1, OnceCell::new()).is_err());
        assert!(cache.insert("file".as_ref(), 0, 1 << 32, OnceCell::new()).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_has_become_a_pipe_is_not_waited_for() {
        let file = std::env::temp_dir().join(format!("pugmark-cache-pipe-{}", std::process::id()));
        fs::write(&file, [0; 4]).unwrap();
        let mut cache = SectionCache::default();
        let section = cache.add(&file, 0, 4).unwrap();
        fs::remove_file(&file).unwrap();
        let name = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(cache.bytes(section).is_empty());
        fs::remove_file(&file).unwrap();
    }
}
