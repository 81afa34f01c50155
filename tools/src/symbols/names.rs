//! Names as people read them: demangled, and without what a terminal or a line of text would take for something else.

use crate::text::printable;
use pugmark_recorder::names::readable;
use std::borrow::Cow;

/// Returns a readable name without control characters.
pub(super) fn shown(name: &str) -> Cow<'_, str> {
    match readable(name) {
        Cow::Borrowed(name) => printable(name),
        Cow::Owned(name) => match printable(&name) {
            Cow::Owned(name) => name.into(),
            Cow::Borrowed(_) => name.into(),
        },
    }
}
