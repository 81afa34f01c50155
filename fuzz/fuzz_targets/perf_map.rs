//! Checks the reader of `/tmp/perf-PID.map`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::perf_map::check(data));
