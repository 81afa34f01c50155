//! The reader of the functions that a runtime has compiled, with their code.

pub use crate::symbols::check_dump as check;
