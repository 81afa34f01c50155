//! Shows texts of others without what a terminal obeys.

use std::borrow::Cow;

/// Returns a name or a message without characters that a terminal obeys or that end a line: each is shown by its
/// number, as in `\u{1b}`. So are those that change the direction of what follows.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_hidden = |letter: char| {
        letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut shown = String::new();
    for letter in text.chars() {
        match is_hidden(letter) {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push(letter),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown_by_its_number() {
        for (text, expected) in [
            ("a b<c>;é", "a b<c>;é"),
            ("\x1b]0;x\x07", "\\u{1b}]0;x\\u{7}"),
            ("a\nb\r\tc", "a\\u{a}b\\u{d}\\u{9}c"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            ("a\u{202e}b\u{2066}\u{2028}", "a\\u{202e}b\\u{2066}\\u{2028}"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }
}
