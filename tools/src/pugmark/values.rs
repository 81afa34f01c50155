//! Values on command lines: numbers as C has them, and ranges of addresses.

use crate::number;
use std::ops::RangeInclusive;

/// A number that fits its field.
pub(super) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let value = number::parse(text).ok_or("not a number")?;
    T::try_from(value).map_err(|_| format!("above the {} bits of the field", 8 * size_of::<T>()))
}

/// `FIRST-LAST`, or one address.
pub(super) fn range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number::parse(first), number::parse(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err("not an address, nor two with - between".into()),
    }
}
