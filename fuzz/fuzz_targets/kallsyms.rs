//! Checks the reader of a kernel's list of symbols.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::kallsyms::check(data));
