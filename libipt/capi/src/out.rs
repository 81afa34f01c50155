//! Answers in the caller's memory.

use crate::error::Code;
use std::{ffi::c_int, ptr};

/// Writes as much of a structure as the caller's has room for; further bytes of the caller's structure become zero.
///
/// # Safety
/// `out` points to `size` writable bytes.
#[inline]
pub(crate) unsafe fn write_out<T: Copy>(value: &T, out: *mut T, size: usize) {
    let own = size_of::<T>();
    if size == own {
        // SAFETY: the caller's structure has that many bytes.
        unsafe { out.write_unaligned(*value) };
        return;
    }
    let out = out.cast::<u8>();
    // SAFETY: both have that many bytes.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), out, own.min(size)) };
    if size > own {
        // SAFETY: the caller's structure is longer than ours.
        let rest = unsafe { out.add(own) };
        // SAFETY: these bytes are the rest of the caller's structure.
        unsafe { rest.write_bytes(0, size - own) };
    }
}

/// Writes as much of a structure as the caller's has room for, and nothing after it.
///
/// # Safety
/// `out` points to `size` writable bytes.
#[inline]
pub(crate) unsafe fn write_start<T: Copy>(value: &T, out: *mut T, size: usize) {
    // SAFETY: by contract.
    unsafe { write_out(value, out, size.min(size_of::<T>())) }
}

/// Writes an offset of a decoder. The outer `None`: there is no decoder; the inner one: it was never synchronised.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn write_offset(decoder: Option<Option<u64>>, out: *mut u64) -> c_int {
    let Some(known) = decoder.filter(|_| !out.is_null()) else { return Code::Invalid.status() };
    let Some(offset) = known else { return Code::NoSync.status() };
    // SAFETY: it is not null, so it is writable.
    unsafe { out.write(offset) };
    0
}
