//! perf's records beside a trace.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::sideband::check(data));
