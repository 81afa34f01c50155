//! The names of functions as people write them.

use std::borrow::Cow;

/// Returns a name without Rust's mangling and without its hash; other names as they are.
#[must_use]
pub fn readable(name: &str) -> Cow<'_, str> {
    // Most names are not Rust's, and it takes time to find that out.
    if !name.trim_start_matches('_').starts_with(['Z', 'R']) {
        return name.into();
    }
    rustc_demangle::try_demangle(name).map_or_else(|_| name.into(), |name| format!("{name:#}").into())
}
