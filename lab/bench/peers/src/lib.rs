//! Other Intel PT decoders with a C interface, so that `cargo xtask bench` can run them in its own process.
//!
//! All of them are built with link-time optimisation, as their authors measure them.

mod edges;
mod packets;

use std::slice;

/// A part of the code, as `cargo xtask bench` passes it.
#[repr(C)]
pub struct Section {
    base: u64,
    bytes: *const u8,
    len: usize,
}

/// The result of a run.
#[repr(C)]
#[derive(Default)]
pub struct Outcome {
    /// The number of items.
    count: u64,
    /// The sum of the items' contents.
    sum: u64,
    /// True if the trace was decoded up to its end.
    complete: bool,
}

/// # Safety
/// `bytes` is valid for `len` bytes, for as long as the result is used.
unsafe fn bytes<'a>(bytes: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts(bytes, len) }
}
