//! Checks of pointers that come from C.

use crate::outcome::Failure;

/// Returns the value at a pointer, or which argument it was if it is null or misaligned.
///
/// # Safety
///
/// Any other pointer must be valid for reads as long as `'a` lasts.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, wrong: &'static str) -> Result<&'a T, Failure> {
    if !pointer.is_aligned() {
        return Err(Failure::Argument(wrong));
    }
    // SAFETY: aligned, and valid by the caller's promise if it is not null.
    unsafe { pointer.as_ref() }.ok_or(Failure::Argument(wrong))
}

/// Returns an error with the text `wrong` unless `right`.
pub(crate) fn check(right: bool, wrong: &'static str) -> Result<(), Failure> {
    if right { Ok(()) } else { Err(Failure::Argument(wrong)) }
}
