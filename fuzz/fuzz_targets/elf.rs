//! Checks the readers of ELF files that code comes from.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::elf::check(data));
