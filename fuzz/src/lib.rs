//! Properties that must hold for the decoder on any input. Each layer has a module with a function `check` that panics
//! if a property does not hold.
//!
//! The fuzz targets in `fuzz_targets/` run these functions under libFuzzer; `cargo test` here runs them on the corpus.
//! An input is a sequence of bytes that choose what is generated ([`arbitrary`]), because arbitrary traces would rarely
//! get past the first PSB+. Debug assertions and overflow checks are on.
//!
//! ```
//! pugmark_fuzz::encoder::check(b"any bytes");
//! ```

pub mod blocks;
pub mod code;
pub mod decoder_config;
pub mod elf;
pub mod encoder;
pub mod events;
pub mod heap;
pub mod insns;
pub mod jitdump;
pub mod kallsyms;
pub mod packets;
pub mod perf_data;
pub mod perf_map;
pub mod query;
pub mod reference;
pub mod sideband;
pub mod slices;
pub mod subject;
pub mod symbols;
pub mod trace;
pub mod wire;

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;
