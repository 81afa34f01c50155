//! Checks the readers of functions of ELF files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::symbols::check(data));
