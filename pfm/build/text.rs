//! Reads the descriptions of events and unit masks.

use crate::row::rows;

/// The event name that matches every event.
const ANY: &str = "*";

/// Descriptions by name. `#` in a name matches a number, and `#` in the description is replaced by that number.
pub(crate) struct Descriptions<'a> {
    /// Event, unit mask (empty for the event itself), description.
    rows: Vec<(&'a str, &'a str, &'a str)>,
}

impl<'a> Descriptions<'a> {
    /// Reads the rows. An error begins with its line.
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

    /// Returns the description of an event, or of one of its unit masks. Descriptions under the event's own name come
    /// first.
    pub(crate) fn description(&self, event: &str, mask: &str) -> Option<String> {
        let find = |accept: &dyn Fn(&str) -> bool| {
            self.rows.iter().filter(|row| accept(row.0)).find_map(|&(_, name, words)| fill(name, words, mask))
        };
        if mask.is_empty() {
            return self.rows.iter().filter(|row| row.1.is_empty()).find_map(|row| fill(row.0, row.2, event));
        }
        find(&|of| of != ANY && matches(of, event).is_some()).or_else(|| find(&|of| of == ANY))
    }
}

/// Returns the description if the pattern matches the name.
fn fill(pattern: &str, words: &str, name: &str) -> Option<String> {
    matches(pattern, name).map(|number| words.replace('#', number))
}

/// Returns the number that `#` matches in the name; empty if the pattern has no `#`.
fn matches<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    let Some((front, back)) = pattern.split_once('#') else {
        return (pattern == name).then_some("");
    };
    let number = name.strip_prefix(front)?.strip_suffix(back)?;
    (!number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())).then_some(number)
}
