//! Compares the query layer with the events that it is made from.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pugmark_fuzz::query::check(data));
