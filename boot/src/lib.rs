//! The parts of the bootable kernel that need no machine: boot information, memory, symbols, what a trace says.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod archive;
pub mod boot_info;
pub mod branches;
pub mod code_section;
pub mod command_line;
pub mod decode;
pub mod expectation;
pub mod histogram;
pub mod last_words;
pub mod regions;
pub mod samples;
pub mod sinks;
pub mod symbols;
pub mod tally;
