//! Digits as people read them: on a terminal with a separator between each three, in files without.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal};

/// The way in which numbers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digits {
    is_grouped: bool,
}

impl Digits {
    /// The way for a file or a pipe.
    pub const PLAIN: Self = Self { is_grouped: false };

    /// Returns the way for standard output.
    #[must_use]
    pub fn on_stdout() -> Self {
        Self { is_grouped: io::stdout().is_terminal() }
    }

    /// Returns the way for standard error.
    #[must_use]
    pub fn on_stderr() -> Self {
        Self { is_grouped: io::stderr().is_terminal() }
    }

    /// Returns a number as it is printed.
    #[must_use]
    pub fn of(self, number: u64) -> PrintedNumber {
        let digits = number.to_string();
        let mut text = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if self.is_grouped && at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        PrintedNumber(text)
    }

    /// Returns the width of a column in which numbers of up to `digits` digits are printed.
    #[must_use]
    pub const fn width(self, digits: usize) -> usize {
        if self.is_grouped { digits + digits.saturating_sub(1) / 3 } else { digits }
    }
}

/// A number as it is printed.
#[derive(Clone, Debug)]
pub struct PrintedNumber(String);

impl Display for PrintedNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_three_digits_are_apart_on_a_terminal_alone() {
        let terminal = Digits { is_grouped: true };
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (123_456, "123,456"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(terminal.of(count).to_string(), text);
            assert_eq!(Digits::PLAIN.of(count).to_string(), count.to_string());
            assert_eq!(terminal.width(count.to_string().len()), text.len());
        }
        assert_eq!((terminal.width(14), Digits::PLAIN.width(14)), (18, 14));
        assert_eq!(format!("{:>7}|{:<7}|", terminal.of(1234), terminal.of(1234)), "  1,234|1,234  |");
    }
}
