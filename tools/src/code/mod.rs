//! The code that was traced, read from files.

pub mod elf;
pub mod image;
