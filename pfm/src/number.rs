//! Reads numbers like C with base 0.

/// Returns the number if the whole of `text` is one.
///
/// Blanks and a sign may come first. A leading `0x` makes the number hexadecimal, another leading `0` octal. A number
/// that is too large becomes `u64::MAX`, as with C's `strtoull`.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, text) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', ..] => (text, 8),
        _ => (text, 10),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = Some(0_u64);
    for digit in digits.chars() {
        let digit = u64::from(digit.to_digit(radix)?);
        value = value.and_then(|value| value.checked_mul(u64::from(radix))?.checked_add(digit));
    }
    Some(match value {
        Some(value) if negative => value.wrapping_neg(),
        Some(value) => value,
        None => u64::MAX,
    })
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
            ("\x0b7", Some(7)),
            ("+7", Some(7)),
            ("-1", Some(u64::MAX)),
            ("-18446744073709551615", Some(1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            ("-18446744073709551616", Some(u64::MAX)),
            ("0x1ffffffffffffffff", Some(u64::MAX)),
            ("", None),
            ("-", None),
            ("--1", None),
            ("zz", None),
            ("08", None),
            ("0x", None),
            ("0xg", None),
            ("5 ", None),
            ("1.5", None),
            ("٣", None),
        ] {
            assert_eq!(parse(text), value, "{text:?}");
        }
    }
}
