//! Parts of files, mapped while they are read.

use super::{block_cache::BlockCache, cache::Inner, code::Extra, insn::PtInsn, shape::Shapes};
use crate::error::Code;
use memmap2::{Mmap, MmapOptions};
use std::{
    ffi::{CStr, CString, OsStr},
    fs::{self, File, Metadata},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _},
    },
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

/// A part of a file.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) file: CString,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// The state by which libipt recognises a changed file: its size, and the time of the last change in seconds.
    state: (u64, i64),
    mapping: Mutex<Weak<Mapping>>,
    /// The cache that keeps the section mapped, if it belongs to one.
    cache: Weak<Mutex<Inner>>,
}

/// A section that is mapped while it is read.
#[derive(Debug)]
pub(crate) struct Mapping {
    bytes: Bytes,
    block_cache: OnceLock<BlockCache>,
    shapes: OnceLock<Shapes>,
    /// The number of instructions decoded.
    decoded: AtomicUsize,
    /// A number that no other mapping ever has.
    pub(crate) number: u64,
}

/// Bytes of the section per decoded instruction at which shapes begin to be cached. Allocating the cache then costs
/// little compared with the decoding, even if the section is mapped again and again.
const BYTES_FOR_DECODED: usize = 0x400;

impl Mapping {
    fn new(bytes: Bytes) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        Self {
            bytes,
            block_cache: OnceLock::new(),
            shapes: OnceLock::new(),
            decoded: AtomicUsize::new(0),
            number,
        }
    }

    /// Returns the bytes in memory; none if the file cannot be mapped.
    #[inline]
    pub(crate) fn memory(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Memory(memory) => memory,
            Bytes::File(_) => &[],
        }
    }

    /// Returns the shapes of the instructions from an offset on, if they are remembered.
    pub(crate) fn shapes(&self, offset: usize) -> &[AtomicU16] {
        self.shapes.get().map_or(&[], |shapes| shapes.from(offset))
    }

    /// Returns the packed entries of the block cache from an offset on, if there is one.
    pub(crate) fn known_entries(&self, offset: usize) -> &[AtomicU32] {
        self.block_cache.get().map_or(&[], |cache| cache.from(offset))
    }

    /// Caches an instruction that was decoded.
    pub(crate) fn remember(&self, offset: u64, insn: &PtInsn, extra: &Extra) {
        let len = self.memory().len();
        if self.shapes.get().is_none() {
            let decoded = self.decoded.fetch_add(1, Ordering::Relaxed) + 1;
            if decoded < len / BYTES_FOR_DECODED {
                return;
            }
        }
        self.shapes.get_or_init(|| Shapes::new(len)).set(offset, insn, extra);
    }
}

/// The bytes of a section.
#[derive(Debug)]
enum Bytes {
    Memory(Mmap),
    /// The file cannot be mapped.
    File(File),
}

impl Section {
    /// Returns a section of the file, not longer than the file. `None`: there is no such file, or it ends before
    /// `offset`.
    pub(crate) fn new(file: &CStr, offset: u64, size: u64, cache: Weak<Mutex<Inner>>) -> Option<Arc<Self>> {
        let metadata = fs::metadata(path(file)).ok()?;
        let left = metadata.len().checked_sub(offset).filter(|&left| left > 0)?;
        Some(Arc::new(Self {
            file: file.into(),
            offset,
            size: size.min(left),
            state: state(&metadata),
            mapping: Mutex::default(),
            cache,
        }))
    }

    /// Returns the bytes. The file is mapped again unless the mapping still exists.
    pub(crate) fn map(&self) -> Result<Arc<Mapping>, Code> {
        let mapping = self.map_shared()?;
        self.keep(&mapping);
        Ok(mapping)
    }

    /// Lets the cache keep the section mapped.
    fn keep(&self, mapping: &Arc<Mapping>) {
        if let Some(cache) = self.cache.upgrade() {
            locked(&cache).keep(mapping, self.memory(mapping));
        }
    }

    /// Returns the block cache of the section, which exists as long as the section is mapped. `None`: it is too large.
    pub(crate) fn block_cache<'a>(&self, mapping: &'a Arc<Mapping>) -> Option<&'a BlockCache> {
        if let Some(cache) = mapping.block_cache.get() {
            return Some(cache);
        }
        let bytes = u32::try_from(self.size).ok()?;
        let cache = mapping.block_cache.get_or_init(|| BlockCache::new(bytes as usize));
        self.keep(mapping);
        Some(cache)
    }

    fn map_shared(&self) -> Result<Arc<Mapping>, Code> {
        let mut known = locked(&self.mapping);
        if let Some(mapping) = known.upgrade() {
            return Ok(mapping);
        }
        let file = File::open(path(&self.file)).map_err(|_| Code::BadImage)?;
        let metadata = file.metadata().map_err(|_| Code::BadImage)?;
        if state(&metadata) != self.state {
            return Err(Code::BadImage);
        }
        let mapping = Arc::new(Mapping::new(self.map_file(file)));
        *known = Arc::downgrade(&mapping);
        Ok(mapping)
    }

    fn map_file(&self, file: File) -> Bytes {
        let Ok(size) = usize::try_from(self.size) else { return Bytes::File(file) };
        // SAFETY: nobody shortens the file while it is mapped, which libipt also asks of its callers.
        match unsafe { MmapOptions::new().offset(self.offset).len(size).map(&file) } {
            Ok(memory) => Bytes::Memory(memory),
            Err(_) => Bytes::File(file),
        }
    }

    /// Reads from an offset, up to the end of the section. Returns the number of bytes.
    pub(crate) fn read(&self, mapping: &Mapping, from: u64, out: &mut [u8]) -> Result<usize, Code> {
        let left = self.size.checked_sub(from).filter(|&left| left > 0).ok_or(Code::NotMapped)?;
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..size];
        match &mapping.bytes {
            Bytes::Memory(memory) => {
                // Offsets before the end of the section are in its mapping.
                let from = from as usize;
                out.copy_from_slice(memory.get(from..from + size).ok_or(Code::Internal)?);
                Ok(size)
            }
            Bytes::File(file) => file.read_at(out, self.offset + from).map_err(|_| Code::NotMapped),
        }
    }

    /// Returns the mapping's memory in bytes as libipt counts it: the section's own bytes, those before it in its first
    /// page, and, once it has a block cache, a word for each of its bytes and one more.
    fn memory(&self, mapping: &Mapping) -> u64 {
        /// The page size of x86-64; libipt asks the system.
        const PAGE: u64 = 0x1000;
        let bytes = match &mapping.bytes {
            Bytes::Memory(_) => self.size + self.offset % PAGE,
            Bytes::File(_) => 0,
        };
        bytes + mapping.block_cache.get().map_or(0, |_| (self.size + 1) * size_of::<AtomicU32>() as u64)
    }
}

fn path(file: &CStr) -> &Path {
    OsStr::from_bytes(file.to_bytes()).as_ref()
}

fn state(metadata: &Metadata) -> (u64, i64) {
    (metadata.len(), metadata.mtime())
}

/// Locks the mutex. Nobody panics while holding a lock, because a panic ends the process.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
