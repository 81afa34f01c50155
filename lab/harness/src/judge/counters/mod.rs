//! Performance counters: compares counts with events, and checks that interrupts can come where samples are.
//!
//! While a counter is on, the log has exactly the instructions that the counter saw, without the instructions that turn
//! it on and off. Interrupts and exceptions count too. The log does not have them, but each leads to the first
//! instruction of its vector's stub, and nothing else leads there.
//!
//! Source: BKDG 31116, "Performance Counter Events", EventSelect 0C0h, 0C2h, 0C6h; PPR 56176, "Core Performance Monitor
//! Counters", PMCx0C0, PMCx0C2, PMCx0C6. For Intel SDM vol. 3, Performance Monitoring, "Pre-defined Architectural
//! Performance Events".

use anyhow::{Context, Result, bail, ensure};
use std::collections::HashSet;
use std::fmt;

use super::samples::none_missing;
use super::stubs::{STUBS, is_begin_of_stub, nmi_handler};
use super::{Conditions, Evidence, Judge, ended_well};
use crate::code;
use crate::instructions::Instructions;
use crate::report::SampledSession;
use crate::symbols::Symbols;
use crate::truth::Record;

/// Families 0Fh to 15h, on which interrupts and exceptions count as instructions.
const DELIVERIES_ARE_INSTRUCTIONS: [&str; 3] = ["k8", "barcelona", "trinity"];

/// The event selects that the guest counts on AMD's processors, in this order; the last one is also sampled.
const SELECTS: [u16; 4] = [0xc0, 0xc2, 0xc6, 0xc0];
/// Those that it counts on Intel's.
const OF_INTEL: [u16; 2] = [0xc0, 0xc4];

/// The counts of a workload, which equal the truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountersVerdict {
    /// The event selects and their counts.
    pub counts: Vec<(u16, u64)>,
    /// Number of samples taken.
    pub samples: u64,
}

impl fmt::Display for CountersVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(select, value)| write!(f, "{select:#x}={value} "))?;
        write!(f, "equal; samples={} in it", self.samples)
    }
}

impl Judge for CountersVerdict {
    const WORD: &'static str = "counters";
    const TITLE: &'static str = "performance counters";

    /// Checks that each count equals the truth, and that the last one's samples are where an interrupt can have come,
    /// and as many as there were periods.
    fn judge(evidence: &Evidence<'_>, conditions: &Conditions<'_>) -> Result<Self> {
        let Evidence { run, truth, symbols, image } = *evidence;
        ended_well(run)?;
        ensure!(run.lost.total() == 0, "the guest lost {}", run.lost);
        let mut instructions = Instructions::new(code::of(run, image)?);
        for samples in &run.samples {
            let records = truth.session(samples.totals.session);
            all_interrupted(samples, records, &mut instructions, nmi_handler(symbols)?)?;
        }
        compare(evidence, conditions, &mut instructions)
    }
}

fn compare(
    evidence: &Evidence<'_>,
    conditions: &Conditions<'_>,
    instructions: &mut Instructions,
) -> Result<CountersVerdict> {
    let Evidence { run, truth, symbols, .. } = *evidence;
    let selects: Vec<u16> = run.counts.iter().map(|count| count.event).collect();
    let &Conditions { profile, is_intel, .. } = conditions;
    let expected = if is_intel { &OF_INTEL[..] } else { &SELECTS };
    ensure!(selects == expected, "counted {selects:x?}");
    let as_instructions = DELIVERIES_ARE_INSTRUCTIONS.contains(&profile);
    for count in &run.counts {
        let events = Events::of(truth.session(count.session), run.filter.cpl, instructions, symbols)?;
        let expected = events.counted(count.event, as_instructions)?;
        let event = count.event;
        ensure!(
            count.value == expected,
            "event {event:#x} was counted {} times, and happened {expected} times: {events:?}",
            count.value
        );
    }
    let counts = run.counts.iter().map(|count| (count.event, count.value)).collect();
    if is_intel {
        ensure!(run.samples.is_empty(), "{} sessions with samples", run.samples.len());
        return Ok(CountersVerdict { counts, samples: 0 });
    }
    let [samples] = &run.samples[..] else {
        bail!("{} sessions with samples, instead of one", run.samples.len())
    };
    let samples = &samples.totals;
    let sampled = run.counts.iter().find(|count| count.session == samples.session);
    let value = sampled.context("the samples are of a session in which nothing was counted")?.value;
    let periods = value.checked_div(samples.period).context("a period of 0 events")?;
    let reported = samples.taken + samples.skipped + samples.unplaced;
    ensure!(reported == periods, "{periods} periods, and the guest reports samples of {reported}");
    Ok(CountersVerdict { counts, samples: samples.taken })
}

/// Checks that each sample is where an interrupt can have come, and that no sample is missing.
///
/// An interrupt's return address is that of the next instruction. If that instruction retired, it is in the truth. If
/// it faulted, one of two things preceded it: the instruction directly before it in memory retired, or another handler
/// returned to it. In the second case the truth has that return and then the NMI handler, at `handler`; at most as many
/// such samples are allowed as the truth has such pairs.
///
/// # Errors
/// If an address is not in the truth, the numbers do not add up, or a record's address has no instruction.
fn all_interrupted(
    samples: &SampledSession,
    records: &[Record],
    instructions: &mut Instructions,
    handler: u64,
) -> Result<()> {
    let (mut retired, mut after, mut returns) = (HashSet::new(), HashSet::new(), 0);
    let mut returned = false;
    for record in records {
        let kind = instructions.of(record)?;
        returns += u64::from(returned && record.rip == handler);
        returned = kind.returns_from_handler;
        if retired.insert(record.rip) {
            after.insert(record.rip + kind.len);
        }
    }
    let can_come = |address: &u64| retired.contains(address) || after.contains(address);
    let stray = || samples.addresses.iter().filter(|(address, _)| !can_come(address));
    if stray().map(|(_, count)| count).sum::<u64>() > returns {
        let (address, _) = stray().next().unwrap_or((&0, &0));
        bail!("interrupted at {address:#x}, where no instruction that retired begins or ends");
    }
    none_missing(samples)
}

/// The number of each event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Retired instructions, including software interrupts.
    pub instructions: u64,
    /// Retired instructions that can branch, taken or not, without software interrupts.
    pub branches: u64,
    /// Retired far transfers, without software interrupts.
    pub far: u64,
    /// Software interrupts.
    pub software_interrupts: u64,
    /// Interrupts and exceptions of all kinds.
    pub deliveries: u64,
}

impl Events {
    /// Counts the events at one privilege level: `Some(0)` for level 0, `Some(3)` for all levels above it, `None` for
    /// all. An interrupt counts at the level to which the instruction before it led.
    ///
    /// # Errors
    /// If a record's address has no instruction, or the image has no stubs.
    pub fn of<'r>(
        records: impl IntoIterator<Item = &'r Record>,
        cpl: Option<u8>,
        instructions: &mut Instructions,
        symbols: &Symbols,
    ) -> Result<Self> {
        let stubs = symbols.address(STUBS)?;
        let mut events = Self::default();
        let mut now = 0;
        // The levels to which the handlers return.
        let mut interrupted = Vec::new();
        for record in records {
            let at_level = |level: u8| u64::from(cpl.is_none_or(|cpl| (cpl == 0) == (level == 0)));
            if is_begin_of_stub(record.rip, stubs) {
                events.deliveries += at_level(now);
                interrupted.push(now);
            }
            now = record.flags.cpl();
            let counts = at_level(now);
            events.instructions += counts;
            if record.flags.is_software_interrupt() {
                events.software_interrupts += counts;
            } else {
                let kind = instructions.of(record)?;
                events.branches += counts * u64::from(kind.branch);
                events.far += counts * u64::from(kind.far);
                let back = if kind.returns_from_handler { interrupted.pop() } else { None };
                now = kind.leads_to.or(back).unwrap_or(now);
            }
        }
        Ok(events)
    }

    /// Returns the expected count of event `select`: C4H is Intel's, C0H is both's, the others are AMD's. Families 0Fh
    /// to 15h also count interrupts and exceptions as instructions (`as_instructions`).
    ///
    /// # Errors
    /// If the event is unknown here.
    pub fn counted(&self, select: u16, as_instructions: bool) -> Result<u64> {
        Ok(match select {
            // A software interrupt already counts as an instruction; its delivery does not count again in either case.
            0xc0 if as_instructions => self.instructions + self.deliveries - self.software_interrupts,
            0xc0 => self.instructions,
            0xc2 => self.branches + self.deliveries,
            // Intel's: a software interrupt is a branch instruction, and no other delivery is.
            0xc4 => self.branches + self.software_interrupts,
            0xc6 => self.far + self.deliveries,
            _ => bail!("event {select:#x} is unknown here"),
        })
    }
}

#[cfg(test)]
mod tests;
