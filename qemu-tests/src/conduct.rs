//! Does a kernel keep to the rules of the hardware?
//!
//! The monitor writes a line of its own for each rule that is broken:
//!
//! | line | meaning |
//! |---|---|
//! | `monitor: violation processor=N NAME=COUNT…` | rules that hardware does not enforce, and how often each was broken since the last such line |
//! | `monitor: refused processor=N msr=0x… [value=0x…] rip=0x…: WHY` | RDMSR, or WRMSR of a value, raised #GP |
//!
//! A kernel that means an access to be refused says so, before it or before the workload ends: `probe NAME msr=0x… [value=0x…]`. Two things happen to
//! a kernel that does nothing wrong, if it tells of them: page faults of the debug store's, which it handles, and branch
//! records and samples that are lost while it does not drain the buffer.

use anyhow::{Context, Result};

use crate::protocol::{Pairs, number};

/// What begins each of the monitor's lines. A guest that is interrupted in the middle of a line has it in the middle.
const MONITOR: &str = "monitor: ";

/// An access to an MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The register.
    pub msr: u64,
    /// What is written; none: it is read.
    pub value: Option<u64>,
}

impl Access {
    /// Reads `msr=0x…` and, if there is one, `value=0x…`.
    ///
    /// # Errors
    /// There is no register, or something is no number.
    pub fn parse(pairs: &[&str]) -> Result<Self> {
        let pairs = Pairs(pairs);
        let value = pairs.get("value").ok().map(number).transpose()?;
        Ok(Self { msr: number(pairs.get("msr")?)?, value })
    }
}

/// Rules that were broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// One that the hardware enforces by a fault.
    Refused(Access),
    /// Some that it does not: how often each.
    Unnoticed(Vec<(String, u64)>),
}

impl Breach {
    /// What a line says of the monitor's; nothing, if it does not say that a rule was broken.
    ///
    /// # Errors
    /// A line that begins like one that does, and goes on otherwise.
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
                let access = Access::parse(pairs).context("in a line of the monitor's")?;
                Ok(Some(Self::Refused(access)))
            }
            _ => Ok(None),
        }
    }
}

/// What a kernel did in one workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conduct {
    /// The monitor's lines, with the access that was refused, if that is what they say.
    breaches: Vec<(Breach, String)>,
    /// The accesses that the kernel meant to be refused, in order.
    probes: Vec<Access>,
}

impl Conduct {
    /// Takes in one of the monitor's lines.
    pub fn breach(&mut self, breach: Breach, line: &str) {
        self.breaches.push((breach, line.into()));
    }

    /// The kernel means an access to be refused.
    pub fn probe(&mut self, access: Access) {
        self.probes.push(access);
    }

    /// What was not as the kernel said: a rule that it broke, a probe that was not refused, a page fault that was
    /// none.
    #[must_use]
    pub fn wrong(&self, told: Told) -> Option<String> {
        let mut probes = self.probes.iter();
        let mut faults = 0;
        let mut wrong = Vec::new();
        for (breach, line) in &self.breaches {
            let meant = match breach {
                // Probes are refused one after the other.
                Breach::Refused(access) => {
                    probes.as_slice().first() == Some(access) && probes.next().is_some()
                }
                Breach::Unnoticed(counts) => counts.iter().all(|(name, count)| match name.as_str() {
                    "ds_page_faults" => {
                        faults += count;
                        true
                    }
                    "branch_records_dropped" | "samples_dropped" => told.records_lost,
                    _ => false,
                }),
            };
            if !meant {
                wrong.push(line.clone());
            }
        }
        wrong.extend(probes.map(|probe| format!("was not refused: {probe:x?}")));
        if faults != told.faults {
            wrong.push(format!("{faults} page faults of the debug store's, {} are told", told.faults));
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

/// What a kernel tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Page faults of the debug store's.
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
            let wrong = conduct.wrong(Told { faults, records_lost });
            assert_eq!(wrong.is_none(), right, "{lines:?}: {wrong:?}");
        }
    }

    #[test]
    fn only_what_was_announced_may_be_refused() {
        let (ctl, read) = (Some(0x8000), None);
        // The monitor's lines, the kernel's probes, what is wrong.
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
            let wrong = conduct.wrong(Told::default());
            assert_eq!(wrong.is_some(), expected.is_some(), "{lines:?} {probes:x?}: {wrong:?}");
            assert!(
                wrong.unwrap_or_default().contains(expected.unwrap_or_default()),
                "{lines:?} {probes:x?}"
            );
        }
    }
}
