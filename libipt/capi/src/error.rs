//! The texts of error codes.

pub(crate) use pugmark_ipt::Code;
use std::ffi::{c_char, c_int};

/// Returns the text of an error; it is static. The code is the positive one.
#[unsafe(no_mangle)]
pub extern "C" fn pt_errstr(code: c_int) -> *const c_char {
    Code::text_of(code).unwrap_or(c"internal error.").as_ptr()
}
