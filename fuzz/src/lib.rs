//! What must hold of the decoder on any input: a module a layer, each with one `check` that panics where it does not.
//!
//! The fuzz targets in `fuzz_targets/` are these functions under libFuzzer; `cargo test` here runs them on the corpus.
//! Inputs are bytes that choose what is made of them ([`arbitrary`]), because plain bytes would rarely get past the
//! first PSB+. Debug assertions and overflow checks are on.
//!
//! ```
//! pugmark_fuzz::encoder::check(b"any bytes");
//! ```

pub mod asked;
pub mod blocks;
pub mod code;
pub mod elf;
pub mod encoder;
pub mod events;
pub mod heap;
pub mod insns;
pub mod packets;
pub mod query;
pub mod reference;
pub mod sideband;
pub mod subject;
pub mod trace;
pub mod wire;

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;
