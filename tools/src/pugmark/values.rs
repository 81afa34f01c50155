//! Reads values on command lines: numbers in C's notation, and ranges of addresses.

use crate::number;
use std::ops::RangeInclusive;

/// Reads a number that fits its field.
pub(super) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let value = number::parse(text).ok_or("not a number: write 16, 0x10 or 020")?;
    let bits = 8 * size_of::<T>();
    let largest = u64::MAX >> (64 - bits);
    T::try_from(value).map_err(|_| format!("too large: the field has {bits} bits, at most {largest:#x}"))
}

/// Reads `FIRST-LAST`, or one address.
pub(super) fn range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number::parse(first), number::parse(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err("not an address and not a range: write FIRST-LAST, with FIRST not above LAST".into()),
    }
}
