//! Errors in a line of the protocol.

use core::error::Error;
use core::fmt;

/// An error in a line that the protocol does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError<'a> {
    /// The byte of the line where the error is; if a word is missing, the line's end.
    pub at: usize,
    /// The kind of error.
    pub kind: ParseErrorKind<'a>,
}

/// The kind of error in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseErrorKind<'a> {
    /// No line begins with this word.
    UnknownLine(&'a str),
    /// The line ends before this word.
    MissingWord(&'static str),
    /// The line has this word after all its words.
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
        /// The text in the line.
        text: &'a str,
    },
    /// A value that the key cannot have.
    BadValue {
        /// The key.
        field: &'static str,
        /// The text in the line.
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
