//! Compares a decoded trace with the truth log that was recorded with it.

use super::totals::{Totals, hash_text};
use crate::description::Description;
use serde::Serialize;
use std::{fmt, path::PathBuf};

/// The result of the comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The file of the truth.
    pub truth: PathBuf,
    /// True if all values equal the truth.
    pub equal: bool,
    /// The values that differ.
    pub differences: Vec<Difference>,
}

/// A value that differs from the truth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The name of the value.
    pub what: &'static str,
    /// The decoded value.
    pub found: String,
    /// The value in the truth.
    pub truth: String,
}

impl Check {
    /// Compares totals with a description; `None` if the description has no truth.
    #[must_use]
    pub fn new(totals: &Totals, description: &Description) -> Option<Self> {
        let (count, hash) = description.truth?;
        let mut differences = vec![];
        let mut hold = |what, found: String, truth: String| {
            if found != truth {
                differences.push(Difference { what, found, truth });
            }
        };
        if let Some(bytes) = description.bytes {
            hold("bytes", totals.bytes.to_string(), bytes.to_string());
        }
        hold("count", totals.instructions.to_string(), count.to_string());
        let found = totals.hash.map_or("none".into(), hash_text);
        hold("hash", found, format!("{hash:#018x}"));
        Some(Self { truth: description.file.clone(), equal: differences.is_empty(), differences })
    }
}

impl fmt::Display for Check {
    /// Writes `equal to FILE`, or `not as FILE: count 5 instead of 6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.truth.display();
        if self.equal {
            return write!(f, "equal to {file}");
        }
        write!(f, "not as {file}")?;
        for (index, Difference { what, found, truth }) in self.differences.iter().enumerate() {
            write!(f, "{} {what} {found} instead of {truth}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::hash::AddressHash;

    #[test]
    fn each_difference_is_named_with_both_values() {
        let mut hash = AddressHash::new();
        hash.add(0x1000);
        let totals = Totals { bytes: 7, instructions: 1, hash: Some(hash), ..Totals::default() };
        let truth = |count, hash, bytes| Description {
            file: "a/truth.json".into(),
            truth: Some((count, hash)),
            bytes,
            ..Description::default()
        };
        let value = hash.value();
        for (truth, text) in [
            (truth(1, value, Some(7)), "equal to a/truth.json".to_owned()),
            (truth(1, value, None), "equal to a/truth.json".to_owned()),
            (truth(2, value, Some(7)), "not as a/truth.json: count 1 instead of 2".to_owned()),
            (
                truth(2, 5, Some(8)),
                format!(
                    "not as a/truth.json: bytes 7 instead of 8, count 1 instead of 2, hash {value:#018x} instead of \
                     0x0000000000000005"
                ),
            ),
        ] {
            let check = Check::new(&totals, &truth).unwrap();
            assert_eq!((check.to_string(), check.equal), (text.clone(), text.starts_with("equal")));
        }
        assert_eq!(Check::new(&totals, &Description::default()), None);
        let check = Check::new(&Totals::default(), &truth(0, 5, None)).unwrap();
        assert_eq!(check.to_string(), "not as a/truth.json: hash none instead of 0x0000000000000005");
    }
}
