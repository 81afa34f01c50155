//! libipt.so.2 with Pugmark's decoder: the functions and structures that Debian's `intel-pt.h` (libipt 2.0.5)
//! declares.
//!
//! Programs that are linked with libipt run on it without being rebuilt. `README.md` lists the functions and their
//! tests.
//!
//! Every function checks its arguments as libipt does: where libipt answers `-pte_invalid` to a null pointer, so does
//! the function. What it cannot check is the `# Safety` of each function. Pointers to decoders must come from the
//! function that allocates them, and a decoder is used by one thread at a time.
//!
//! A panic never leaves a function: a panic that would leave an `extern "C"` function ends the process, and the
//! release profile ends it where it happens. Catching it instead would let a decoder be used whose state is not known
//! any more. The decoder returns errors for whatever is in the trace and panics nowhere on purpose.

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!(
    "the layouts of libipt's structures are written down for 64-bit little-endian processors only"
);

mod clock;
mod common;
pub mod config;
pub mod encoder;
pub mod error;
pub mod event;
pub mod flow;
pub mod image;
#[cfg(test)]
mod layout;
mod out;
pub mod packet;
pub mod packets;
pub mod query;
mod sync;
pub mod version;
