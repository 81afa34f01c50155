//! Compares a decoded trace with the truth that was recorded with it.

use super::totals::{Totals, hash_text};
use crate::description::Description;
use serde::Serialize;
use std::{fmt, path::PathBuf};

/// The result of the comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The file of the truth.
    pub truth: PathBuf,
    /// Whether all values are as they should be.
    pub equal: bool,
    /// The values that are not.
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
