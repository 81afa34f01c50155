//! Checks that the encoder and the packet layer undo each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::encoder::check(data));
