//! Checks the reader of jitdumps.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::jitdump::check(data));
