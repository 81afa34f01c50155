//! A pseudoterminal that a test reads.
#![cfg(target_os = "linux")]

use std::fs::File;

/// Returns both ends of a pseudoterminal: output of a program to the second can be read from the first.
pub(crate) fn terminal() -> (File, File) {
    use std::os::fd::FromRawFd;
    let (mut first, mut second) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: the numbers are written to variables of their type, and all other pointers may be null.
    let opened = unsafe { libc::openpty(&raw mut first, &raw mut second, none, none.cast(), none.cast()) };
    assert_eq!(opened, 0, "openpty: {}; is /dev/pts mounted?", std::io::Error::last_os_error());
    // SAFETY: it was opened above and has no other owner.
    let first = unsafe { File::from_raw_fd(first) };
    // SAFETY: as above.
    (first, unsafe { File::from_raw_fd(second) })
}
