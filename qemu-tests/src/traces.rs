//! The traces that a guest has dumped, each with the code that it is of.

use anyhow::{Result, ensure};
use std::path::Path;

use crate::code::{self, Code};
use crate::machine::Outcome;
use crate::protocol::Run;

/// A workload's trace.
#[derive(Clone, Debug)]
pub struct Trace<'o> {
    /// What the guest said of it.
    pub run: &'o Run,
    /// Its bytes: the contiguous parts, between which something was lost.
    pub parts: Vec<&'o [u8]>,
    /// The code.
    pub code: Vec<Code>,
}

/// Cuts the debug console's bytes into the traces that the guest announced.
///
/// # Errors
/// Fewer or more bytes than announced, or code that is not in the image.
pub fn of<'o>(outcome: &'o Outcome, image: &Path) -> Result<Vec<Trace<'o>>> {
    let mut rest = outcome.dump.as_slice();
    let mut traces = Vec::new();
    for run in &outcome.transcript.runs {
        let mut parts = Vec::new();
        for &length in &run.dump {
            let split = rest.split_at_checked(usize::try_from(length)?);
            ensure!(split.is_some(), "{}: {length} bytes announced, {} are there", run.name, rest.len());
            let (part, behind) = split.unwrap_or_default();
            parts.push(part);
            rest = behind;
        }
        if !parts.is_empty() {
            traces.push(Trace { run, parts, code: code::of(run, image)? });
        }
    }
    ensure!(rest.is_empty(), "{} bytes that nobody announced", rest.len());
    Ok(traces)
}
