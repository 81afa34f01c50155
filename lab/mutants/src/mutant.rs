//! A change of the code, and its place.

use std::fmt;
use std::path::PathBuf;

/// A change and its place.
pub(super) struct Mutant {
    pub(super) place: usize,
    pub(super) number: usize,
    pub(super) file: PathBuf,
    pub(super) function: String,
    pub(super) constant: bool,
    pub(super) line: usize,
    pub(super) column: usize,
    /// The line where the change begins, without surrounding spaces.
    pub(super) line_text: String,
    pub(super) old: String,
    pub(super) new: String,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, function, old, new, .. } = self;
        write!(f, "{}:{line}:{column}  in fn {function}  `{old}` -> `{new}`", self.file.display())
    }
}
