//! The packet layer, on bytes as they are.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::packets::check(data));
