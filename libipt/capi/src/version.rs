//! The version of libipt that the library reports.

use std::ffi::c_char;

/// `struct pt_version`.
#[repr(C)]
#[derive(Debug)]
pub struct Version {
    pub(crate) major: u8,
    pub(crate) minor: u8,
    pub(crate) patch: u16,
    pub(crate) build: u32,
    pub(crate) ext: *const c_char,
}

/// Returns the version of libipt whose functions these are: 2.0.5, with the extension `pugmark`.
#[unsafe(no_mangle)]
pub extern "C" fn pt_library_version() -> Version {
    Version { major: 2, minor: 0, patch: 5, build: 0, ext: c"pugmark".as_ptr() }
}
