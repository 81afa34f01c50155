//! Code of which more is known than its bytes.

use super::{
    block::Way,
    shape::{LONGEST, Shape},
};
use std::{
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicU16, AtomicU32, Ordering},
};

/// A part of a mapped section, and what is known of it, by the number of bytes from its first address on.
#[derive(Debug)]
pub(crate) struct KnownCode {
    bytes: *const u8,
    len: u64,
    shapes: *const AtomicU16,
    /// How many addresses may have a shape: those from which on there are as many bytes as the longest instruction has.
    shaped: u64,
    ways: *const AtomicU32,
    /// How many addresses may have a way.
    with_way: u64,
}

impl KnownCode {
    pub(crate) const NONE: Self =
        Self { bytes: ptr::null(), len: 0, shapes: ptr::null(), shaped: 0, ways: ptr::null(), with_way: 0 };

    /// Of bytes, shapes and ways that live as long as this is used.
    pub(crate) fn new(bytes: &[u8], shapes: &[AtomicU16], ways: &[AtomicU32]) -> Self {
        Self {
            bytes: bytes.as_ptr(),
            len: bytes.len() as u64,
            shapes: shapes.as_ptr(),
            shaped: bytes.len().min(shapes.len()).saturating_sub(LONGEST - 1) as u64,
            ways: ways.as_ptr(),
            with_way: bytes.len().min(ways.len()) as u64,
        }
    }

    pub(crate) const fn has(&self, at: u64) -> bool {
        at < self.len
    }

    /// The instruction at an address: its shape, if it was decoded in this mode, and its bytes.
    ///
    /// # Safety
    /// The code is still there.
    #[inline(always)]
    pub(crate) unsafe fn shape(&self, at: u64, mode: c_int) -> Option<(Shape, &[u8; LONGEST])> {
        if at >= self.shaped {
            return None;
        }
        let at = at as usize;
        // SAFETY: there is one for each address.
        let place = unsafe { self.shapes.add(at) };
        // SAFETY: it is there by contract.
        let shape = Shape::in_mode(unsafe { &*place }.load(Ordering::Relaxed), mode)?;
        // SAFETY: so many bytes follow each address that may have a shape.
        let bytes = unsafe { self.bytes.add(at) }.cast();
        // SAFETY: they are there by contract.
        Some((shape, unsafe { &*bytes }))
    }

    /// The way from an address.
    ///
    /// # Safety
    /// The code is still there.
    #[inline(always)]
    pub(crate) unsafe fn way(&self, at: u64) -> Option<Way> {
        if at >= self.with_way {
            return None;
        }
        // SAFETY: there is one for each address.
        let place = unsafe { self.ways.add(at as usize) };
        // SAFETY: it is there by contract.
        Way::unpack(unsafe { &*place }.load(Ordering::Relaxed))
    }

    /// The bytes from an address on.
    ///
    /// # Safety
    /// The code is still there.
    #[inline(always)]
    pub(crate) unsafe fn bytes<const N: usize>(&self, at: u64) -> Option<&[u8; N]> {
        if at >= self.len || self.len - at < N as u64 {
            return None;
        }
        // SAFETY: the address and so many more are there.
        let bytes = unsafe { self.bytes.add(at as usize) }.cast();
        // SAFETY: they are there by contract.
        Some(unsafe { &*bytes })
    }
}
