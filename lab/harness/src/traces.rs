//! The traces that a guest has dumped, each with the code that was traced.

use anyhow::{Result, ensure};
use std::path::Path;

use crate::code::{self, Code};
use crate::machine::Outcome;
use crate::report::Run;

/// A workload's trace.
#[derive(Clone, Debug)]
pub struct Trace<'o> {
    /// The guest's report of the trace.
    pub run: &'o Run,
    /// The trace bytes, in contiguous parts; something was lost between two parts.
    pub parts: Vec<&'o [u8]>,
    /// The code that was traced.
    pub code: Vec<Code>,
}

/// Splits the debug console's bytes into the traces that the guest announced.
///
/// # Errors
/// If there are fewer or more bytes than announced, or code is not in the image.
pub fn of<'o>(outcome: &'o Outcome, image: &Path) -> Result<Vec<Trace<'o>>> {
    let mut rest = outcome.dump.as_slice();
    let mut traces = Vec::new();
    for run in &outcome.transcript.runs {
        let mut parts = Vec::new();
        for &length in &run.dump {
            let split = rest.split_at_checked(usize::try_from(length)?);
            ensure!(split.is_some(), "{}: {length} bytes announced, {} are there", run.name, rest.len());
            let (part, left) = split.unwrap_or_default();
            parts.push(part);
            rest = left;
        }
        if !parts.is_empty() {
            traces.push(Trace { run, parts, code: code::of(run, image)? });
        }
    }
    ensure!(rest.is_empty(), "{} bytes that no workload announced", rest.len());
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Transcript;
    use crate::scratch::Scratch;
    use crate::testing::{self, CODE};
    use crate::truth::Truth;

    #[test]
    fn the_dump_is_cut_where_the_guest_says() {
        let scratch = Scratch::new().unwrap();
        let image = testing::image(&scratch, &[0x90, 0x90, 0xc3]);
        let section = format!("section base=0x5000 len=2 from={:#x} cr3=any", CODE + 1);
        let outcome = |last: u64, dump: &[u8]| {
            let runs = vec![
                testing::run("a", &format!("dump bytes=2\ndump bytes=1\n{section}\nok")),
                testing::run("b", "ok"),
                testing::run("c", &format!("dump bytes={last}\nok")),
            ];
            let transcript = Transcript { runs, ..Transcript::default() };
            Outcome { transcript, truth: Truth::default(), dump: dump.into() }
        };
        let right = outcome(3, &[1, 2, 3, 4, 5, 6]);
        let traces = of(&right, &image).unwrap();
        let found: Vec<_> = traces.iter().map(|trace| (trace.run.name.as_str(), &trace.parts[..])).collect();
        assert_eq!(found, [("a", &[&[1, 2][..], &[3]][..]), ("c", &[&[4, 5, 6][..]])]);
        assert_eq!(traces[0].code, [Code { base: 0x5000, bytes: vec![0x90, 0xc3], cr3: None }]);
        assert!(of(&outcome(4, &[1, 2, 3, 4, 5, 6]), &image).is_err());
        assert!(of(&outcome(2, &[1, 2, 3, 4, 5, 6]), &image).is_err());
        assert!(of(&outcome(3, &[]), &image).is_err());
    }
}
