//! The cache of sections: `pt_iscache_*`. Threads may share one.

use super::section::{Mapping, Section, locked};
use crate::error::Code;
use std::{
    ffi::{CStr, CString, c_char, c_int},
    ptr,
    sync::{Arc, Mutex},
};

/// `struct pt_image_section_cache`.
#[derive(Debug)]
pub struct Cache {
    name: Option<CString>,
    /// The sections share it.
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Sections and the addresses that they are loaded at. The identifier of an entry is its index plus one.
    entries: Vec<(Arc<Section>, u64)>,
    /// The maximum memory of unused mappings, in bytes.
    limit: u64,
    /// The unused mappings that are kept, each with its memory in bytes, the most recently used first.
    kept: Vec<(Arc<Mapping>, u64)>,
}

/// libipt's limit of entries: the largest multiple of eight that a 16-bit number holds.
const MOST_ENTRIES: usize = 65528;

/// The maximum number of bytes of one read.
const MOST_BYTES: u64 = u16::MAX as u64;

impl Inner {
    /// Returns the entry of this part of a file at this address, or else its first entry at another address.
    fn find(&self, file: &CStr, offset: u64, size: u64, address: u64) -> Option<usize> {
        let is = |section: &Section| {
            section.offset == offset && section.size == size && section.file.as_c_str() == file
        };
        let first = self.entries.iter().position(|(section, _)| is(section))?;
        let shared = &self.entries[first].0;
        let exact =
            self.entries.iter().position(|(section, at)| Arc::ptr_eq(section, shared) && *at == address);
        Some(exact.unwrap_or(first))
    }

    /// Keeps a mapping, which takes `memory` bytes, as the most recently used one.
    pub(crate) fn keep(&mut self, mapping: &Arc<Mapping>, memory: u64) {
        match self.kept.iter().position(|(kept, _)| Arc::ptr_eq(kept, mapping)) {
            Some(known) => {
                self.kept[..=known].rotate_right(1);
                self.kept[0].1 = memory;
            }
            None if memory > self.limit => return,
            None => self.kept.insert(0, (Arc::clone(mapping), memory)),
        }
        self.prune();
    }

    /// Drops the least recently used mappings, from the first one that exceeds the limit.
    fn prune(&mut self) {
        let mut used = 0_u64;
        let fits = |(_, memory): &&(Arc<Mapping>, u64)| {
            used = used.saturating_add(*memory);
            used <= self.limit
        };
        let kept = self.kept.iter().take_while(fits).count();
        self.kept.truncate(kept);
    }
}

/// Returns the identifier of an entry.
fn identifier(index: usize) -> c_int {
    // There are at most 65528 entries.
    index as c_int + 1
}

impl Cache {
    fn add(&self, file: &CStr, offset: u64, size: u64, address: u64) -> Result<c_int, Code> {
        let mut inner = locked(&self.inner);
        let mut found = inner.find(file, offset, size, address);
        let mut new = None;
        if found.is_none() {
            let section =
                Section::new(file, offset, size, Arc::downgrade(&self.inner)).ok_or(Code::Invalid)?;
            // The section may be shorter than asked for, and cached with its real size.
            found = inner.find(file, offset, section.size, address);
            new = Some(section);
        }
        let section = match (found, new) {
            (Some(found), _) if inner.entries[found].1 == address => return Ok(identifier(found)),
            (Some(found), _) => Arc::clone(&inner.entries[found].0),
            (None, Some(section)) => section,
            (None, None) => return Err(Code::Internal),
        };
        if inner.entries.len() == MOST_ENTRIES {
            return Err(Code::NoMemory);
        }
        inner.entries.push((section, address));
        Ok(identifier(inner.entries.len() - 1))
    }

    /// Returns the section of this identifier, and its address.
    pub(crate) fn lookup(&self, isid: c_int) -> Result<(Arc<Section>, u64), Code> {
        let index = isid.checked_sub(1).filter(|&index| index >= 0).ok_or(Code::BadImage)?;
        let index = u16::try_from(index).map_err(|_| Code::Internal)?;
        locked(&self.inner).entries.get(usize::from(index)).cloned().ok_or(Code::BadImage)
    }

    fn read(&self, isid: c_int, address: u64, out: &mut [u8]) -> Result<usize, Code> {
        let (section, base) = self.lookup(isid)?;
        let from = address.checked_sub(base).ok_or(Code::NotMapped)?;
        let mapping = section.map()?;
        section.read(&mapping, from, out)
    }
}

/// Copies a name.
///
/// # Safety
/// `name` is null or a C string.
pub(crate) unsafe fn owned(name: *const c_char) -> Option<CString> {
    // SAFETY: it is not null, so it is a C string by contract.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.into())
}

/// Makes a cache. The name, which may be null, is copied.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_alloc(name: *const c_char) -> *mut Cache {
    // SAFETY: by contract.
    let name = unsafe { owned(name) };
    let inner = Arc::new(Mutex::new(Inner { entries: vec![], limit: u64::MAX, kept: vec![] }));
    Box::into_raw(Box::new(Cache { name, inner }))
}

/// Frees the cache. Images keep the sections that they took from it.
///
/// # Safety
/// `cache` is null or from [`pt_iscache_alloc`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_free(cache: *mut Cache) {
    if !cache.is_null() {
        // SAFETY: `pt_iscache_alloc` made it from a box.
        drop(unsafe { Box::from_raw(cache) });
    }
}

/// Returns the cache's name, which lives as long as the cache; null if it has none.
///
/// # Safety
/// `cache` is null or from [`pt_iscache_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_name(cache: *const Cache) -> *const c_char {
    // SAFETY: by contract.
    let cache = unsafe { cache.as_ref() };
    cache.and_then(|cache| cache.name.as_ref()).map_or(ptr::null(), |name| name.as_ptr())
}

/// Sets the maximum memory of unused mappings, in bytes.
///
/// # Safety
/// As for [`pt_iscache_name`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_set_limit(cache: *mut Cache, limit: u64) -> c_int {
    // SAFETY: by contract; the cache's lock guards its mutable state.
    let Some(cache) = (unsafe { cache.as_ref() }) else { return Code::Invalid.status() };
    let mut inner = locked(&cache.inner);
    inner.limit = limit;
    inner.prune();
    0
}

/// Adds a part of a file, unless the cache has it, and returns its identifier.
///
/// # Safety
/// As for [`pt_iscache_name`]; `file` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_add_file(
    cache: *mut Cache,
    file: *const c_char,
    offset: u64,
    size: u64,
    address: u64,
) -> c_int {
    // SAFETY: by contract; the cache's lock guards its mutable state.
    let Some(cache) = (unsafe { cache.as_ref() }) else { return Code::Invalid.status() };
    if file.is_null() {
        return Code::Invalid.status();
    }
    // SAFETY: it is not null, so it is a C string by contract.
    let file = unsafe { CStr::from_ptr(file) };
    cache.add(file, offset, size, address).unwrap_or_else(Code::status)
}

/// Reads at most 65535 bytes from an entry, up to its end, and returns the number of bytes.
///
/// # Safety
/// As for [`pt_iscache_name`]; `out` is null or has `size` writable bytes. The file must not become shorter meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_read(
    cache: *mut Cache,
    out: *mut u8,
    size: u64,
    isid: c_int,
    address: u64,
) -> c_int {
    // SAFETY: by contract; the cache's lock guards its mutable state.
    let Some(cache) = (unsafe { cache.as_ref() }) else { return Code::Invalid.status() };
    if out.is_null() || size == 0 {
        return Code::Invalid.status();
    }
    let mut bytes = vec![0; size.min(MOST_BYTES) as usize];
    match cache.read(isid, address, &mut bytes) {
        Ok(read) => {
            // SAFETY: `out` has at least as many bytes by contract. They may be uninitialised, so they are only written
            // to.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out, read) };
            // At most 65535.
            read as c_int
        }
        Err(code) => code.status(),
    }
}
