//! Checks the packet layer on arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::packets::check(data));
