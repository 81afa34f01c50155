//! The words of a line, each with its position.

use core::fmt;

use crate::error::{ParseError, ParseErrorKind};

/// A word, or the value in a `KEY=VALUE` word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'a> {
    /// The byte of the line where it begins.
    pub(crate) at: usize,
    pub(crate) text: &'a str,
}

/// The words of a line that were not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    /// Returns the words of a line from byte `at` on.
    pub(crate) fn new(line: &'a str, at: usize) -> Self {
        Self { line, at }
    }

    /// Reads the next words. `names` are their names in the protocol's table, for errors.
    pub(crate) fn first<const N: usize>(
        &mut self,
        names: [&'static str; N],
    ) -> Result<[Word<'a>; N], ParseError<'a>> {
        let mut words = [Word { at: self.at, text: "" }; N];
        for (word, name) in words.iter_mut().zip(names) {
            *word = self.next().ok_or_else(|| self.ends_before(name))?;
        }
        Ok(words)
    }

    /// Reads all words that are left, which must be as many as `names`, their names in the protocol's table.
    pub(crate) fn only<const N: usize>(
        mut self,
        names: [&'static str; N],
    ) -> Result<[Word<'a>; N], ParseError<'a>> {
        let words = self.first(names)?;
        match self.next() {
            Some(Word { at, text }) => Err(ParseError { at, kind: ParseErrorKind::TrailingWord(text) }),
            None => Ok(words),
        }
    }

    /// Returns the text that is left, without spaces around it.
    pub(crate) fn text(self) -> &'a str {
        self.line[self.at..].trim()
    }

    /// Returns the text that is left up to the last word, and the last word, which the protocol's table calls `name`.
    pub(crate) fn text_and_last(self, name: &'static str) -> Result<(&'a str, Word<'a>), ParseError<'a>> {
        let last = self.last().ok_or_else(|| self.ends_before(name))?;
        Ok((self.line[self.at..last.at].trim(), last))
    }

    /// Reads all words that are left, which must be `KEY=VALUE` words with these keys.
    pub(crate) fn pairs(self, keys: &[&str]) -> Result<Pairs<'a>, ParseError<'a>> {
        for word in self {
            let Word { at, text } = word;
            let Some((key, _)) = text.split_once('=') else {
                return Err(ParseError { at, kind: ParseErrorKind::NotAPair(text) });
            };
            if !keys.contains(&key) {
                return Err(ParseError { at, kind: ParseErrorKind::UnknownKey(key) });
            }
        }
        Ok(Pairs(self))
    }

    fn ends_before(&self, name: &'static str) -> ParseError<'a> {
        ParseError { at: self.line.len(), kind: ParseErrorKind::MissingWord(name) }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let rest = self.line[self.at..].trim_start();
        let at = self.line.len() - rest.len();
        let text = rest.split_whitespace().next()?;
        self.at = at + text.len();
        Some(Word { at, text })
    }
}

/// The `KEY=VALUE` words of a line; their keys were checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pairs<'a>(Words<'a>);

impl<'a> Pairs<'a> {
    /// Returns all values of a key.
    pub(crate) fn all(self, key: &str) -> impl Iterator<Item = Word<'a>> {
        self.0.filter_map(move |Word { at, text }| {
            let (name, value) = text.split_once('=')?;
            (name == key).then_some(Word { at: at + name.len() + 1, text: value })
        })
    }

    /// Returns the first value of a key, if the key is there.
    pub(crate) fn find(self, key: &str) -> Option<Word<'a>> {
        self.all(key).next()
    }

    /// Returns the first value of a key, which must be there.
    pub(crate) fn get(self, key: &'static str) -> Result<Word<'a>, ParseError<'a>> {
        let kind = ParseErrorKind::MissingKey(key);
        self.find(key).ok_or(ParseError { at: self.0.line.len(), kind })
    }

    /// Returns the number that a key has; the key must be there.
    pub(crate) fn number<T: TryFrom<u64>>(self, key: &'static str) -> Result<T, ParseError<'a>> {
        self.get(key)?.number(key)
    }

    /// Returns the number that a key has, if the key is there.
    pub(crate) fn maybe_number<T: TryFrom<u64>>(
        self,
        key: &'static str,
    ) -> Result<Option<T>, ParseError<'a>> {
        self.find(key).map(|word| word.number(key)).transpose()
    }
}

impl<'a> Word<'a> {
    /// Reads the word as a number in C notation: hexadecimal after `0x`, otherwise decimal.
    pub(crate) fn number<T: TryFrom<u64>>(self, field: &'static str) -> Result<T, ParseError<'a>> {
        let number = match self.text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => self.text.parse(),
        };
        let number = number.ok().and_then(|number| number.try_into().ok());
        number.ok_or(ParseError { at: self.at, kind: ParseErrorKind::BadNumber { field, text: self.text } })
    }

    /// Reads the word as a number, or as the word `none`, which means that there is no number.
    pub(crate) fn number_or(self, none: &str, field: &'static str) -> Result<Option<u64>, ParseError<'a>> {
        if self.text == none { Ok(None) } else { self.number(field).map(Some) }
    }

    /// Reads the word as one of some values; `word` gives the word for each value.
    pub(crate) fn one_of<T: Copy>(
        self,
        field: &'static str,
        values: impl IntoIterator<Item = T>,
        word: fn(T) -> &'static str,
    ) -> Result<T, ParseError<'a>> {
        let found = values.into_iter().find(|value| word(*value) == self.text);
        found.ok_or_else(|| self.bad_value(field))
    }

    pub(crate) fn bad_value(self, field: &'static str) -> ParseError<'a> {
        ParseError { at: self.at, kind: ParseErrorKind::BadValue { field, text: self.text } }
    }
}

/// Prints a number in hexadecimal, or a word if there is no number.
pub(crate) struct HexOr(pub(crate) Option<u64>, pub(crate) &'static str);

impl fmt::Display for HexOr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number:#x}"),
            None => f.write_str(self.1),
        }
    }
}
