//! Reads numbers as C's `strtoull` reads them with base 0.

/// Returns the number at the front of `text` and the text after it, or 0 and the whole text if there is no number.
/// Returns `None` for a number above 64 bits.
///
/// Blanks and a sign may precede the number. A leading `0x` makes the number hexadecimal, another leading `0` octal.
pub fn split(text: &str) -> Option<(u64, &str)> {
    let unsigned = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, unsigned) = match unsigned.strip_prefix(['-', '+']) {
        Some(rest) => (unsigned.starts_with('-'), rest),
        None => (false, unsigned),
    };
    let hexadecimal = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X"));
    let (digits, radix) = match hexadecimal {
        Some(digits) if digits.starts_with(|first: char| first.is_ascii_hexdigit()) => (digits, 16),
        _ if unsigned.starts_with('0') => (unsigned, 8),
        _ => (unsigned, 10),
    };
    let end = digits.find(|digit: char| !digit.is_digit(radix)).unwrap_or(digits.len());
    if end == 0 {
        return Some((0, text));
    }
    let value = u64::from_str_radix(&digits[..end], radix).ok()?;
    Some((if negative { value.wrapping_neg() } else { value }, &digits[end..]))
}

/// Returns the number if the whole of `text` is one. An empty text is not a number.
pub fn parse(text: &str) -> Option<u64> {
    parse_or_zero(text).filter(|_| !text.is_empty())
}

/// Returns the number if the whole of `text` is one. An empty text is 0.
pub fn parse_or_zero(text: &str) -> Option<u64> {
    match split(text)? {
        (value, "") => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_as_c_does() {
        for (text, value) in [
            ("0", Some(0)),
            ("10", Some(10)),
            ("010", Some(8)),
            ("0x10", Some(16)),
            ("0XfF", Some(255)),
            (" 7", Some(7)),
            ("+7", Some(7)),
            ("-1", Some(u64::MAX)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("0x1ffffffffffffffff", None),
            ("", None),
            ("-", None),
            ("zz", None),
            ("08", None),
            ("0x", None),
            ("0xg", None),
            ("5 ", None),
            (" ", None),
            ("1.5", None),
        ] {
            assert_eq!(parse(text), value, "{text:?}");
        }
        assert_eq!(split("0x10-0x20"), Some((16, "-0x20")));
        assert_eq!(split("0x"), Some((0, "x")));
        assert_eq!(split("089"), Some((0, "89")));
        for text in ["", "x", "-", " +y"] {
            assert_eq!(split(text), Some((0, text)));
        }
        assert_eq!((parse_or_zero(""), parse_or_zero("-")), (Some(0), None));
    }
}
