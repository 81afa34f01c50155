//! Checks that a kernel keeps to the rules of the hardware.
//!
//! The monitor writes a line for each rule that is broken:
//!
//! | line | meaning |
//! |---|---|
//! | `monitor: violation processor=N NAME=COUNT…` | rules that hardware does not enforce, and how often each was broken since the last such line |
//! | `monitor: refused processor=N msr=0x… [value=0x…] rip=0x…: WHY` | RDMSR, or WRMSR of a value, raised #GP |
//!
//! A kernel that wants an access to be refused announces it by a `probe` line, before the access or before the workload
//! ends. Two things may happen to a correct kernel, if it reports them: page faults of the debug store, which it handles,
//! and branch records and samples that are lost because it does not drain the buffer.

use anyhow::{Context, Result};
use pugmark_protocol::Access;

/// The beginning of each of the monitor's lines. If the guest is interrupted in the middle of a line, this text is in
/// the middle.
const MONITOR: &str = "monitor: ";

/// One or more rules that were broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// An access that the hardware refuses with a fault.
    Refused(Access),
    /// Rules that the hardware does not enforce: the name of each, and how often it was broken.
    Unnoticed(Vec<(String, u64)>),
}

impl Breach {
    /// Parses one of the monitor's lines; `None` if the line does not report a broken rule.
    ///
    /// # Errors
    /// The line begins like a report of a broken rule but is malformed.
    pub fn parse(line: &str) -> Result<Option<Self>> {
        let Some((_, text)) = line.split_once(MONITOR) else { return Ok(None) };
        let words: Vec<&str> = text.split_whitespace().map(|word| word.trim_end_matches(':')).collect();
        match words.as_slice() {
            ["violation", _processor, counts @ ..] => {
                let count = |word: &&str| {
                    let (name, count) = word.split_once('=').with_context(|| format!("{word:?}"))?;
                    anyhow::Ok((name.into(), number(count)?))
                };
                Ok(Some(Self::Unnoticed(counts.iter().map(count).collect::<Result<_>>()?)))
            }
            ["refused", pairs @ ..] => {
                let access = access(pairs).context("in a line of the monitor's")?;
                Ok(Some(Self::Refused(access)))
            }
            _ => Ok(None),
        }
    }
}

/// Parses the access in one of the monitor's lines: `msr=0x…` and, if present, `value=0x…`.
fn access(pairs: &[&str]) -> Result<Access> {
    let value = |key: &str| {
        let mut pairs = pairs.iter().filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let msr = number(value("msr").context("no msr=")?)?;
    Ok(Access { msr: u32::try_from(msr)?, value: value("value").map(number).transpose()? })
}

/// Parses a number in C notation: `0x` or decimal.
fn number(text: &str) -> Result<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .with_context(|| format!("{text:?} is no number"))
}

/// What a kernel did wrong in one workload, and what it announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conduct {
    /// The broken rules, each with the monitor's line that reports it.
    breaches: Vec<(Breach, String)>,
    /// The accesses that the kernel wanted to be refused, in order.
    probes: Vec<Access>,
}

impl Conduct {
    /// Adds a broken rule, with the monitor's line.
    pub fn breach(&mut self, breach: Breach, line: &str) {
        self.breaches.push((breach, line.into()));
    }

    /// Adds an access that the kernel wants to be refused.
    pub fn probe(&mut self, access: Access) {
        self.probes.push(access);
    }

    /// Returns what was not as the kernel reported: a rule that it broke, a probe that was not refused, a reported page
    /// fault that did not happen.
    #[must_use]
    pub fn wrong(&self, admitted: Admitted) -> Option<String> {
        let mut probes = self.probes.iter();
        let mut faults = 0;
        let mut wrong = Vec::new();
        for (breach, line) in &self.breaches {
            let meant = match breach {
                // Probes are refused in the order in which they were announced.
                Breach::Refused(access) => {
                    probes.as_slice().first() == Some(access) && probes.next().is_some()
                }
                Breach::Unnoticed(counts) => counts.iter().all(|(name, count)| match name.as_str() {
                    "ds_page_faults" => {
                        faults += count;
                        true
                    }
                    "branch_records_dropped" | "samples_dropped" => admitted.records_lost,
                    _ => false,
                }),
            };
            if !meant {
                wrong.push(line.clone());
            }
        }
        wrong.extend(probes.map(|probe| format!("was not refused: {probe:x?}")));
        if faults != admitted.faults {
            wrong
                .push(format!("{faults} page faults of the debug store's, {} are admitted", admitted.faults));
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

/// What a kernel reports about itself, of what the monitor saw too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Page faults of the debug store.
    pub faults: u64,
    /// Branch records or samples are missing because the buffer was full.
    pub records_lost: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CTL: &str = "monitor: refused processor=0 msr=0x570 value=0x8000 rip=0x1000: not taken over 0x0";
    const READ: &str = "monitor: refused processor=1 msr=0x571 rip=0x1000: cannot be read";
    const EDIT: &str = "monitor: violation processor=0 live_table_edits=1 first_live_edit=0x5000";

    #[test]
    fn the_monitors_lines_say_what_was_broken() {
        let counts = [("live_table_edits", 1), ("first_live_edit", 0x5000)];
        let edits = Some(Breach::Unnoticed(counts.map(|(name, count)| (name.into(), count)).to_vec()));
        let refused = |msr, value| Some(Breach::Refused(Access { msr, value }));
        for (line, expected) in [
            (CTL, refused(0x570, Some(0x8000))),
            (READ, refused(0x571, None)),
            (EDIT, edits.clone()),
            (&format!("stat sort cou{EDIT}"), edits),
            ("monitor: 4 processors", None),
            ("ok violation", None),
        ] {
            assert_eq!(Breach::parse(line).unwrap(), expected, "{line}");
        }
        for line in ["monitor: refused msr=x", "monitor: violation processor=0 edits"] {
            assert!(Breach::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_the_kernel_tells_of_is_no_fault_of_its() {
        let (one, two) = ("ds_page_faults=1", "ds_page_faults=2");
        let dropped = "branch_records_dropped=9 ds_page_faults=1";
        for (lines, faults, records_lost, right) in [
            (&[one][..], 1, false, true),
            (&[one, one], 2, false, true),
            (&[one], 0, false, false),
            (&[two], 1, false, false),
            (&[one], 2, false, false),
            (&[], 1, false, false),
            (&[dropped], 1, true, true),
            (&[dropped], 1, false, false),
            (&["samples_dropped=9"], 0, true, true),
            (&["samples_dropped=9"], 0, false, false),
            (&["branch_records_dropped=9 pmis_dropped=1"], 0, true, false),
        ] {
            let mut conduct = Conduct::default();
            for counts in lines {
                let line = format!("monitor: violation processor=0 {counts}");
                conduct.breach(Breach::parse(&line).unwrap().unwrap(), &line);
            }
            let wrong = conduct.wrong(Admitted { faults, records_lost });
            assert_eq!(wrong.is_none(), right, "{lines:?}: {wrong:?}");
        }
    }

    #[test]
    fn only_what_was_announced_may_be_refused() {
        let (ctl, read) = (Some(0x8000), None);
        // The monitor's lines, the kernel's probes, and what is wrong.
        for (lines, probes, expected) in [
            (&[][..], &[][..], None),
            (&[CTL], &[], Some(CTL)),
            (&[EDIT], &[], Some(EDIT)),
            (&[CTL], &[(0x570, ctl)], None),
            (&[CTL, READ], &[(0x570, ctl), (0x571, read)], None),
            (&[CTL, CTL], &[(0x570, ctl)], Some(CTL)),
            (&[EDIT], &[(0x570, ctl)], Some(EDIT)),
            (&[CTL], &[(0x570, read)], Some(CTL)),
            (&[CTL], &[(0x570, Some(1))], Some(CTL)),
            (&[], &[(0x570, ctl)], Some("was not refused")),
            (&[READ], &[(0x570, ctl), (0x571, read)], Some("was not refused")),
        ] {
            let mut conduct = Conduct::default();
            for line in lines {
                conduct.breach(Breach::parse(line).unwrap().unwrap(), line);
            }
            probes.iter().for_each(|&(msr, value)| conduct.probe(Access { msr, value }));
            let wrong = conduct.wrong(Admitted::default());
            assert_eq!(wrong.is_some(), expected.is_some(), "{lines:?} {probes:x?}: {wrong:?}");
            assert!(
                wrong.unwrap_or_default().contains(expected.unwrap_or_default()),
                "{lines:?} {probes:x?}"
            );
        }
    }
}
