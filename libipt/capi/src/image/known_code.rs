//! A part of a mapped section, with its cached instruction shapes and its block cache.

use super::{
    block_cache::PackedEntry,
    shape::{LONGEST, Shape},
};
use std::{
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicU16, AtomicU32, Ordering},
};

/// A part of a mapped section with its cached shapes and block cache entries, all indexed by the offset from its first
/// address.
#[derive(Debug)]
pub(crate) struct KnownCode {
    bytes: *const u8,
    len: u64,
    shapes: *const AtomicU16,
    /// The number of addresses that may have a shape: those with room for the longest instruction.
    shaped: u64,
    entries: *const AtomicU32,
    /// The number of addresses that may have an entry.
    with_entry: u64,
}

impl KnownCode {
    pub(crate) const NONE: Self = Self {
        bytes: ptr::null(),
        len: 0,
        shapes: ptr::null(),
        shaped: 0,
        entries: ptr::null(),
        with_entry: 0,
    };

    /// Makes the code from the section's bytes and its two caches.
    ///
    /// # Safety
    /// The bytes and both caches live as long as this value.
    pub(crate) unsafe fn new(bytes: &[u8], shapes: &[AtomicU16], entries: &[AtomicU32]) -> Self {
        Self {
            bytes: bytes.as_ptr(),
            len: bytes.len() as u64,
            shapes: shapes.as_ptr(),
            shaped: bytes.len().min(shapes.len()).saturating_sub(LONGEST - 1) as u64,
            entries: entries.as_ptr(),
            with_entry: bytes.len().min(entries.len()) as u64,
        }
    }

    pub(crate) const fn has(&self, at: u64) -> bool {
        at < self.len
    }

    /// Returns the instruction at an address: its shape, if it was decoded in this mode, and its bytes.
    #[inline(always)]
    pub(crate) fn shape(&self, at: u64, mode: c_int) -> Option<(Shape, &[u8; LONGEST])> {
        if at >= self.shaped {
            return None;
        }
        let at = at as usize;
        // SAFETY: there is a shape for each address below `shaped`.
        let place = unsafe { self.shapes.add(at) };
        // SAFETY: it lives as long as this value.
        let shape = Shape::in_mode(unsafe { &*place }.load(Ordering::Relaxed), mode)?;
        // SAFETY: each address that may have a shape has at least `LONGEST` bytes.
        let bytes = unsafe { self.bytes.add(at) }.cast();
        // SAFETY: they live as long as this value.
        Some((shape, unsafe { &*bytes }))
    }

    /// Returns the block cache's entry of an address.
    #[inline(always)]
    pub(crate) fn entry(&self, at: u64) -> PackedEntry {
        if at >= self.with_entry {
            return PackedEntry(0);
        }
        // SAFETY: there is an entry for each address below `with_entry`.
        let place = unsafe { self.entries.add(at as usize) };
        // SAFETY: it lives as long as this value.
        PackedEntry(unsafe { &*place }.load(Ordering::Relaxed))
    }

    /// Returns the bytes from an address on.
    #[inline(always)]
    pub(crate) fn bytes<const N: usize>(&self, at: u64) -> Option<&[u8; N]> {
        if at >= self.len || self.len - at < N as u64 {
            return None;
        }
        // SAFETY: N bytes from this address on are inside the part.
        let bytes = unsafe { self.bytes.add(at as usize) }.cast();
        // SAFETY: they live as long as this value.
        Some(unsafe { &*bytes })
    }
}
