//! Checks that a kernel obeys the rules of the hardware.
//!
//! The monitor writes a line for each broken rule:
//!
//! - `monitor: violation processor=N NAME=COUNT…`: rules that hardware does not enforce, and how often each was
//!   broken since the last such line.
//! - `monitor: refused processor=N msr=0x… [value=0x…] rip=0x…: WHY`: RDMSR, or WRMSR of a value, raised #GP.
//!
//! A kernel announces an access that it expects to be refused by a `probe` line, before the access or before the
//! workload ends. Two things may happen to a correct kernel, if it reports them: page faults of the debug store, which
//! it handles, and lost branch records and samples because it does not drain the buffer.

use anyhow::{Context, Result};
use pugmark_protocol::Access;

/// The beginning of each of the monitor's lines.
const MONITOR: &str = "monitor: ";

/// One or more broken rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An access that the hardware refuses with a fault.
    Refused(Access),
    /// Rules that the hardware does not enforce: the name of each, and the number of violations.
    Unenforced(Vec<(String, u64)>),
}

impl Violation {
    /// Parses one of the monitor's lines: the processor that broke the rules, and the rules; `None` if the line does
    /// not report a broken rule.
    ///
    /// # Errors
    /// If the line begins like a report of a broken rule but is malformed.
    pub fn parse(line: &str) -> Result<Option<(u64, Self)>> {
        let Some(text) = line.strip_prefix(MONITOR) else { return Ok(None) };
        let words: Vec<&str> = text.split_whitespace().map(|word| word.trim_end_matches(':')).collect();
        let on = |processor: &str| {
            let number =
                processor.strip_prefix("processor=").with_context(|| format!("no processor in {line:?}"))?;
            number.parse::<u64>().with_context(|| format!("{number:?} is no processor"))
        };
        match words.as_slice() {
            ["violation", processor, counts @ ..] => {
                let count = |word: &&str| {
                    let (name, count) =
                        word.split_once('=').with_context(|| format!("{word:?} is no name with a count"))?;
                    anyhow::Ok((name.into(), number(count)?))
                };
                let counts = counts.iter().map(count).collect::<Result<_>>()?;
                Ok(Some((on(processor)?, Self::Unenforced(counts))))
            }
            ["refused", processor, pairs @ ..] => {
                let access = access(pairs).context("in the monitor's line")?;
                Ok(Some((on(processor)?, Self::Refused(access))))
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

/// A kernel's violations in one workload, and its announcements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// The broken rules, each with the monitor's line that reports it.
    found: Vec<(Violation, String)>,
    /// The accesses that the kernel expected to be refused, in order.
    announced: Vec<Access>,
}

impl Violations {
    /// Adds a broken rule, with the monitor's line.
    pub fn add(&mut self, violation: Violation, line: &str) {
        self.found.push((violation, line.into()));
    }

    /// Adds an access that the kernel expects to be refused.
    pub fn announce(&mut self, access: Access) {
        self.announced.push(access);
    }

    /// Returns the first mismatch with the kernel's report: a rule that it broke, an announced access that was not
    /// refused, a reported page fault that did not happen.
    #[must_use]
    pub fn unexplained(&self, reported: Reported) -> Option<String> {
        let mut announced = self.announced.iter();
        let mut faults = 0;
        let mut wrong = Vec::new();
        for (violation, line) in &self.found {
            let meant = match violation {
                // Accesses are refused in the order in which they were announced.
                Violation::Refused(access) => {
                    announced.as_slice().first() == Some(access) && announced.next().is_some()
                }
                Violation::Unenforced(counts) => counts.iter().all(|(name, count)| match name.as_str() {
                    "ds_page_faults" => {
                        faults += count;
                        true
                    }
                    "branch_records_dropped" | "samples_dropped" => reported.records_lost,
                    _ => false,
                }),
            };
            if !meant {
                wrong.push(line.clone());
            }
        }
        wrong.extend(announced.map(|access| format!("an announced access was not refused: {access:x?}")));
        if faults != reported.page_faults {
            wrong.push(format!(
                "the debug store had {faults} page faults, and the kernel reports {}",
                reported.page_faults
            ));
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

/// A kernel's report about itself that the monitor's lines can confirm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Page faults of the debug store.
    pub page_faults: u64,
    /// Branch records or samples are missing because the buffer was full.
    pub records_lost: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CTL: &str =
        "monitor: refused processor=0 msr=0x570 value=0x8000 rip=0x1000: the register keeps 0x0";
    const READ: &str = "monitor: refused processor=1 msr=0x571 rip=0x1000: cannot be read";
    const EDIT: &str = "monitor: violation processor=0 live_table_edits=1 first_live_edit=0x5000";

    #[test]
    fn the_monitors_lines_say_what_was_broken() {
        let counts = [("live_table_edits", 1), ("first_live_edit", 0x5000)];
        let edits = Violation::Unenforced(counts.map(|(name, count)| (name.into(), count)).to_vec());
        let edits = Some((0, edits));
        let refused = |processor, msr, value| Some((processor, Violation::Refused(Access { msr, value })));
        for (line, expected) in [
            (CTL, refused(0, 0x570, Some(0x8000))),
            (READ, refused(1, 0x571, None)),
            (EDIT, edits),
            (&format!("x{EDIT}"), None),
            ("monitor: 4 processors", None),
            ("ok violation", None),
        ] {
            assert_eq!(Violation::parse(line).unwrap(), expected, "{line}");
        }
        for line in [
            "monitor: refused processor=0 msr=x",
            "monitor: refused msr=1 value=1",
            "monitor: violation processor=0 edits",
            "monitor: violation processor=x edits=1",
        ] {
            assert!(Violation::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_the_kernel_reports_itself_is_no_violation() {
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
            let mut violations = Violations::default();
            for counts in lines {
                let line = format!("monitor: violation processor=0 {counts}");
                violations.add(Violation::parse(&line).unwrap().unwrap().1, &line);
            }
            let wrong = violations.unexplained(Reported { page_faults: faults, records_lost });
            assert_eq!(wrong.is_none(), right, "{lines:?}: {wrong:?}");
        }
    }

    #[test]
    fn only_what_was_announced_may_be_refused() {
        let (ctl, read) = (Some(0x8000), None);
        // The monitor's lines, the accesses that the kernel announced, and the mismatch.
        for (lines, announced, expected) in [
            (&[][..], &[][..], None),
            (&[CTL], &[], Some(CTL)),
            (&[EDIT], &[], Some(EDIT)),
            (&[CTL], &[(0x570, ctl)], None),
            (&[CTL, READ], &[(0x570, ctl), (0x571, read)], None),
            (&[CTL, CTL], &[(0x570, ctl)], Some(CTL)),
            (&[EDIT], &[(0x570, ctl)], Some(EDIT)),
            (&[CTL], &[(0x570, read)], Some(CTL)),
            (&[CTL], &[(0x570, Some(1))], Some(CTL)),
            (&[], &[(0x570, ctl)], Some("an announced access was not refused")),
            (&[READ], &[(0x570, ctl), (0x571, read)], Some("an announced access was not refused")),
        ] {
            let mut violations = Violations::default();
            for line in lines {
                violations.add(Violation::parse(line).unwrap().unwrap().1, line);
            }
            announced.iter().for_each(|&(msr, value)| violations.announce(Access { msr, value }));
            let wrong = violations.unexplained(Reported::default());
            assert_eq!(wrong.is_some(), expected.is_some(), "{lines:?} {announced:x?}: {wrong:?}");
            assert!(
                wrong.unwrap_or_default().contains(expected.unwrap_or_default()),
                "{lines:?} {announced:x?}"
            );
        }
    }
}
