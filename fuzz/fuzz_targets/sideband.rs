//! Checks the reading of perf's sideband records.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::sideband::check(data));
