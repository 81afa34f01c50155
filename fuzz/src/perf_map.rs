//! The reader of the functions that a runtime has compiled, as text.

pub use crate::symbols::check_map as check;
