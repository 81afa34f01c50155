//! Checks the reader of files of `perf record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::perf_data::check(data));
