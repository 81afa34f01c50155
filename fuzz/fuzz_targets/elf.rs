//! ELF files, as code comes from them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::elf::check(data));
