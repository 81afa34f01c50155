//! What is wrong with a line of the protocol.

use core::error::Error;
use core::fmt;

/// A line that the protocol does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError<'a> {
    /// The byte of the line where the error is; if a word is missing, the line's end.
    pub at: usize,
    /// What is wrong there.
    pub kind: ParseErrorKind<'a>,
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseErrorKind<'a> {
    /// No line begins with this.
    UnknownLine(&'a str),
    /// The line ends before this word.
    MissingWord(&'static str),
    /// The line has all its words, and then this one.
    TrailingWord(&'a str),
    /// This key is missing.
    MissingKey(&'static str),
    /// The line has no such key.
    UnknownKey(&'a str),
    /// This word should be `KEY=VALUE`.
    NotAPair(&'a str),
    /// A word or value that is not a number, or is too large.
    BadNumber {
        /// The word, as the protocol's table names it, or the key.
        field: &'static str,
        /// What is there.
        text: &'a str,
    },
    /// A value that the key cannot have.
    BadValue {
        /// The key.
        field: &'static str,
        /// What is there.
        text: &'a str,
    },
}

impl fmt::Display for ParseError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: ", self.at)?;
        match self.kind {
            ParseErrorKind::UnknownLine(word) => write!(f, "no line begins with {word:?}"),
            ParseErrorKind::MissingWord(word) => write!(f, "there is no {word}"),
            ParseErrorKind::TrailingWord(word) => write!(f, "the line ends before {word:?}"),
            ParseErrorKind::MissingKey(key) => write!(f, "there is no {key}="),
            ParseErrorKind::UnknownKey(key) => write!(f, "the line has no key {key:?}"),
            ParseErrorKind::NotAPair(word) => write!(f, "{word:?} is not of the form KEY=VALUE"),
            ParseErrorKind::BadNumber { field, text } => {
                write!(f, "{field} is {text:?}, which is no number, or too large a one")
            }
            ParseErrorKind::BadValue { field, text } => {
                write!(f, "{field} is {text:?}, which is none of its values")
            }
        }
    }
}

impl Error for ParseError<'_> {}
