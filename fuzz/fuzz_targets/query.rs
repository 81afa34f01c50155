//! The query layer, held against the events that it is made of.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::query::check(data));
