//! Checks the instruction flow.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::insns::check(data));
