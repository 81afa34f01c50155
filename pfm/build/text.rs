//! What events and unit masks mean, in words.

use crate::row::rows;

/// The event that stands for any.
const ANY: &str = "*";

/// Descriptions by name. `#` in a name stands for a number, and in the words for that number.
pub(crate) struct Text<'a> {
    /// Event, unit mask or nothing, words.
    rows: Vec<(&'a str, &'a str, &'a str)>,
}

impl<'a> Text<'a> {
    /// Reads the rows; an error begins with its line.
    pub(crate) fn parse(file: &'a str) -> Result<Self, String> {
        let mut event = ANY;
        let mut all = Vec::new();
        for row in rows(file) {
            let [name, words] = row.columns[..] else {
                return Err(format!("{}: {} columns instead of name, words", row.line, row.columns.len()));
            };
            if row.inner {
                all.push((event, name, words));
            } else {
                event = name;
                all.push((event, "", words));
            }
        }
        Ok(Self { rows: all })
    }

    /// The words for an event, or for its unit mask; those under its own event come first.
    pub(crate) fn of(&self, event: &str, mask: &str) -> Option<String> {
        let find = |accept: &dyn Fn(&str) -> bool| {
            self.rows.iter().filter(|row| accept(row.0)).find_map(|&(_, name, words)| fill(name, words, mask))
        };
        if mask.is_empty() {
            return self.rows.iter().filter(|row| row.1.is_empty()).find_map(|row| fill(row.0, row.2, event));
        }
        find(&|of| of != ANY && matches(of, event).is_some()).or_else(|| find(&|of| of == ANY))
    }
}

/// The words, when the pattern matches the name.
fn fill(pattern: &str, words: &str, name: &str) -> Option<String> {
    matches(pattern, name).map(|number| words.replace('#', number))
}

/// The number that `#` stands for in the name; empty where the pattern has none.
fn matches<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    let Some((front, back)) = pattern.split_once('#') else {
        return (pattern == name).then_some("");
    };
    let number = name.strip_prefix(front)?.strip_suffix(back)?;
    (!number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())).then_some(number)
}
