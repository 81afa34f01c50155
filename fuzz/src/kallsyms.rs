//! The reader of a kernel's list of symbols.

pub use crate::symbols::check_kernel as check;
