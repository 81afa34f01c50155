//! The lines between the parts of a log.

/// Prints what comes next, so that a long log is easier to read.
pub(crate) fn headline(text: &str) {
    println!("== {text}");
}
