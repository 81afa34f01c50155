//! Compares a trace that comes in slices with the same trace as a whole.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::slices::check(data));
