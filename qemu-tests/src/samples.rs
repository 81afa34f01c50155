//! Checks that samples of ops are where the workload was, and as frequent.
//!
//! Instruction Based Sampling (IBS) tags one op after each period and reports how it was executed.

use anyhow::{Context, Result, bail, ensure};
use statrs::distribution::{ChiSquared, ContinuousCDF};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::iter::Sum;

use crate::counts::{STUB, STUBS};
use crate::instructions::Instructions;
use crate::report::SampledSession;
use crate::symbols::Symbols;
use crate::truth::Record;

/// Pearson's chi-square statistic: how far observed numbers are from expected ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    /// How many samples were observed.
    pub samples: u64,
    /// The statistic.
    pub statistic: f64,
    /// Its degrees of freedom.
    pub freedom: u32,
}

impl Fit {
    /// Compares observed numbers with expected shares, class by class. Classes in which fewer than 5 samples are
    /// expected are merged into one.
    #[must_use]
    pub fn of(classes: &[(u64, f64)]) -> Self {
        const LEAST: f64 = 5.0;
        let samples: u64 = classes.iter().map(|(observed, _)| observed).sum();
        let shares: f64 = classes.iter().map(|(_, share)| share).sum();
        let mut cells: Vec<(f64, f64)> = Vec::new();
        let mut rest = (0.0, 0.0);
        for &(observed, share) in classes {
            let (observed, expected) = (observed as f64, samples as f64 * share / shares);
            if expected < LEAST {
                rest = (rest.0 + observed, rest.1 + expected);
            } else {
                cells.push((observed, expected));
            }
        }
        match cells.last_mut() {
            Some(last) if rest.1 < LEAST => *last = (last.0 + rest.0, last.1 + rest.1),
            _ => cells.push(rest),
        }
        let statistic = cells.iter().filter(|(_, expected)| *expected > 0.0);
        let statistic = statistic.map(|(observed, expected)| (observed - expected).powi(2) / expected).sum();
        Self { samples, statistic, freedom: cells.len() as u32 - 1 }
    }

    /// The probability of a statistic that is at least this large, if the shares are right.
    #[must_use]
    pub fn p_value(&self) -> f64 {
        ChiSquared::new(self.freedom.into()).map_or(1.0, |distribution| distribution.sf(self.statistic))
    }
}

impl Sum for Fit {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            samples: sum.samples + one.samples,
            statistic: sum.statistic + one.statistic,
            freedom: sum.freedom + one.freedom,
        })
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, statistic, freedom } = self;
        write!(f, "samples={samples} chi2={statistic:.1} df={freedom} p={:.4}", self.p_value())
    }
}

/// Checks that each sample is at an instruction that retired, and that no sample is missing.
///
/// # Errors
/// An address is not in the truth, or the numbers do not add up.
pub fn all_retired(samples: &SampledSession, records: &[Record]) -> Result<()> {
    let retired: HashSet<u64> = records.iter().map(|record| record.rip).collect();
    let stray = samples.addresses.keys().find(|address| !retired.contains(address));
    ensure!(stray.is_none(), "sampled at {:#x}, where nothing retired", stray.unwrap_or(&0));
    none_missing(samples)
}

/// Returns the address at which the handler of NMIs begins.
///
/// # Errors
/// The image has no stubs.
pub fn nmi_handler(symbols: &Symbols) -> Result<u64> {
    const NMI: u64 = 2;
    Ok(symbols.address(STUBS)? + NMI * STUB)
}

/// Checks that each sample is where an interrupt can have come, and that no sample is missing.
///
/// An interrupt's return address is that of the next instruction. If that instruction retired, it is in the truth. If
/// it faulted, one of two things came before it: the instruction directly before it in memory retired, or another
/// handler returned to it. In the second case the truth has that return and then the handler of NMIs, at `handler`;
/// only as many samples as the truth has such pairs may be there.
///
/// # Errors
/// An address is not in the truth, the numbers do not add up, or a record's address has no instruction.
pub fn all_interrupted(
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
        bail!("interrupted at {address:#x}, and nothing retired up to there");
    }
    none_missing(samples)
}

fn none_missing(samples: &SampledSession) -> Result<()> {
    let addressed: u64 = samples.addresses.values().sum();
    ensure!(addressed == samples.totals.taken, "{} samples, {addressed} addresses", samples.totals.taken);
    ensure!(samples.totals.lost == 0, "{} samples had no room", samples.totals.lost);
    Ok(())
}

/// Computes how well the sampled ops fit the ops that could be sampled, function by function.
///
/// The unit counts nothing from a sample until its handler lets it go on, and what the handler does after that is
/// shorter than a period. So no op in the handler of NMIs is sampled, and all others are equally probable.
///
/// # Errors
/// A record's address has no instruction, or the image has no stubs.
pub fn fit(
    samples: &SampledSession,
    records: &[Record],
    instructions: &mut Instructions,
    symbols: &Symbols,
) -> Result<Fit> {
    let starts = symbols.addresses();
    let function = |address: u64| starts.partition_point(|start| *start <= address);
    let mut classes: BTreeMap<usize, (u64, f64)> = BTreeMap::new();
    each_op(records, instructions, nmi_handler(symbols)?, |address, ops, in_handler| {
        if !in_handler {
            classes.entry(function(address)).or_default().1 += ops as f64;
        }
    })?;
    for (&address, &count) in &samples.addresses {
        let class = classes.get_mut(&function(address));
        class.with_context(|| format!("sampled at {address:#x}, in the handler"))?.0 += count;
    }
    Ok(Fit::of(&classes.into_values().collect::<Vec<_>>()))
}

/// Checks that ops were sampled as often as they retired while NMIs of other origin come too. The unit counts on in the
/// handler of such an NMI, but not in that of its own. So it counted at least what ran outside the handler, and at most
/// everything.
///
/// # Errors
/// There are too few or too many samples, a record's address has no instruction, or the image has no stubs.
pub fn as_often(
    samples: &SampledSession,
    records: &[Record],
    instructions: &mut Instructions,
    symbols: &Symbols,
) -> Result<u64> {
    ensure!(samples.totals.period > RANDOM, "a period of {} is all random", samples.totals.period);
    let (mut elsewhere, mut all) = (0, 0);
    each_op(records, instructions, nmi_handler(symbols)?, |_, ops, in_handler| {
        all += ops;
        elsewhere += if in_handler { 0 } else { ops };
    })?;
    let due = elsewhere / (samples.totals.period + RANDOM)..=all / (samples.totals.period - RANDOM);
    ensure!(due.contains(&samples.totals.taken), "{} samples where {due:?} were due", samples.totals.taken);
    Ok(samples.totals.taken)
}

/// The random part of a period: it may begin up to 127 ops ahead, or end up to 240 ops later.
const RANDOM: u64 = 0x100;

/// Calls `tell` for each retired instruction with its address, its ops, and whether it was in the handler of NMIs.
fn each_op(
    records: &[Record],
    instructions: &mut Instructions,
    handler: u64,
    mut tell: impl FnMut(u64, u64, bool),
) -> Result<()> {
    let mut in_handler = false;
    for record in records.iter().filter(|record| !record.flags.is_software_interrupt()) {
        let kind = instructions.of(record)?;
        in_handler |= record.rip == handler;
        tell(record.rip, kind.ops, in_handler);
        in_handler &= !kind.returns_from_handler;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::truth::RecordFlags;
    use pugmark_protocol::Samples;

    #[test]
    fn the_statistic_is_pearsons() {
        // A die was thrown 60 times. In the table of the distribution the probability is 0.05 at 11.07, for 5 degrees
        // of freedom.
        let die = [5, 8, 9, 8, 10, 20].map(|observed| (observed, 1.0));
        let fit = Fit::of(&die);
        assert_eq!((fit.samples, fit.freedom), (60, 5));
        assert!((fit.statistic - 13.4).abs() < 1e-9, "{fit}");
        assert!((fit.p_value() - 0.01991).abs() < 1e-4, "{fit}");
        let critical = Fit { samples: 0, statistic: 11.0705, freedom: 5 };
        assert!((critical.p_value() - 0.05).abs() < 1e-5);
        assert!(Fit::of(&[(500, 1.0), (100, 1.0)]).p_value() < 1e-6);
    }

    #[test]
    fn rare_classes_are_one() {
        let classes = [(50, 50.0), (42, 42.0), (1, 3.0), (3, 3.0), (4, 2.0)];
        assert_eq!(Fit::of(&classes), Fit { samples: 100, statistic: 0.0, freedom: 2 });
        // A class in which exactly 5 samples are expected is not merged.
        assert_eq!(Fit::of(&[(90, 90.0), (5, 5.0), (5, 5.0)]).freedom, 2);
        // Even merged, the classes are still too rare: they are merged into another one.
        let few = Fit::of(&[(60, 60.0), (38, 38.0), (2, 2.0)]);
        assert_eq!(few, Fit { samples: 100, statistic: 0.0, freedom: 1 });
        assert_eq!((Fit::of(&[(3, 1.0)]).freedom, Fit::of(&[]).p_value()), (0, 1.0));
        let all: Fit = [Fit::of(&classes), Fit::of(&[(60, 1.0), (40, 1.0)])].into_iter().sum();
        assert_eq!(all, Fit { samples: 200, statistic: 4.0, freedom: 3 });
    }

    fn record(rip: u64) -> Record {
        Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(0), cpu: 0 }
    }

    fn samples(addresses: &[(u64, u64)]) -> SampledSession {
        let taken = addresses.iter().map(|(_, count)| count).sum();
        let totals = Samples { taken, ..Samples::default() };
        SampledSession { totals, addresses: addresses.iter().copied().collect(), ..SampledSession::default() }
    }

    #[test]
    fn samples_are_of_what_retired() {
        let records = [record(0x1000), record(0x1001)];
        assert!(all_retired(&samples(&[(0x1001, 3)]), &records).is_ok());
        assert!(all_retired(&samples(&[(0x1002, 3)]), &records).is_err());
        for totals in
            [Samples { taken: 4, ..Samples::default() }, Samples { taken: 3, lost: 1, ..Samples::default() }]
        {
            let samples = SampledSession { totals, ..samples(&[(0x1001, 3)]) };
            assert!(all_retired(&samples, &records).is_err(), "{totals}");
        }
    }

    #[test]
    fn interrupts_come_where_something_retired_or_directly_behind() {
        // 1000: nop; 1001: jmp 1005; 1003: ud2; 1005: nop; 1006: ud2.
        let bytes = vec![0x90, 0xeb, 0x02, 0x0f, 0x0b, 0x90, 0x0f, 0x0b];
        let code = vec![Code { base: 0x1000, bytes, cr3: None }];
        let records = [record(0x1000), record(0x1001), record(0x1005)];
        for (address, can_come) in [
            (0x1000, true),
            (0x1005, true),
            // The second UD2 faults after the NOP. After the jump nothing is executed, but the check does not know
            // that.
            (0x1006, true),
            (0x1003, true),
            (0x1002, false),
            (0x1004, false),
            (0x1008, false),
        ] {
            let mut instructions = Instructions::new(code.clone());
            let told = all_interrupted(&samples(&[(address, 1)]), &records, &mut instructions, 0x2020);
            assert_eq!(told.is_ok(), can_come, "{address:#x}");
        }
        let mut instructions = Instructions::new(code);
        let totals = Samples { taken: 2, ..Samples::default() };
        let short = SampledSession { totals, ..samples(&[(0x1000, 1)]) };
        assert!(all_interrupted(&short, &records, &mut instructions, 0x2020).is_err());
    }

    #[test]
    fn an_interrupt_can_come_where_a_handler_returned_to_what_then_faulted() {
        // 1000: nop, ud2, ud2; 2000: the stub of #UD, an IRETQ; 2020: the handler of NMIs, also an IRETQ.
        let mut stubs = vec![0x90; 0x40];
        stubs[..2].copy_from_slice(&[0x48, 0xcf]);
        stubs[0x20..0x22].copy_from_slice(&[0x48, 0xcf]);
        let code = [(0x1000, vec![0x90, 0x0f, 0x0b, 0x0f, 0x0b, 0x90]), (0x2000, stubs)];
        let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
        let told = |addresses: &[(u64, u64)], records: &[u64]| {
            let records: Vec<_> = records.iter().copied().map(record).collect();
            all_interrupted(&samples(addresses), &records, &mut Instructions::new(code.clone()), 0x2020)
                .is_ok()
        };
        // The first UD2 faults, its handler returns to the second one, and there the NMI comes.
        let records = [0x1000, 0x2000, 0x2020, 0x2000, 0x1005];
        assert!(told(&[(0x1003, 1)], &records));
        assert!(!told(&[(0x1003, 2)], &records), "it came there once");
        assert!(!told(&[(0x1003, 1)], &[0x1000, 0x2000, 0x2000, 0x1005]), "no NMI came");
        assert!(!told(&[(0x1003, 1)], &[0x2000, 0x1000, 0x2020, 0x2000, 0x1005]), "it came after a NOP");
    }

    #[test]
    fn ops_outside_the_handler_are_sampled_evenly() {
        // 1000: nop, ret in `a`; 1100: nop in `b`; 2000: stubs of nops, 2022: iretq.
        let mut stubs = vec![0x90; 4096];
        stubs[0x22..0x24].copy_from_slice(&[0x48, 0xcf]);
        let code = [(0x1000, vec![0x90, 0xc3]), (0x1100, vec![0x90]), (0x2000, stubs)];
        let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
        let symbols = Symbols::from_pairs([("a", 0x1000), ("b", 0x1100), (STUBS, 0x2000)]);
        // Three ops of `a` and one of `b`, with the handler in between.
        let records = [0x1000, 0x2020, 0x2021, 0x2022, 0x1001, 0x1100].map(record);
        let fit_of = |addresses: &[(u64, u64)]| {
            fit(&samples(addresses), &records, &mut Instructions::new(code.clone()), &symbols)
        };
        let even = fit_of(&[(0x1000, 25), (0x1001, 50), (0x1100, 25)]).unwrap();
        assert_eq!(even, Fit { samples: 100, statistic: 0.0, freedom: 1 });
        assert!(fit_of(&[(0x1000, 50), (0x1100, 50)]).unwrap().p_value() < 1e-6);
        assert!(fit_of(&[(0x2021, 1), (0x1000, 50)]).is_err());
    }

    #[test]
    fn ops_are_sampled_as_often_as_they_retire_in_the_handler_or_without() {
        // 1000: nop; 2000: stubs of nops, 2022: iretq.
        let mut stubs = vec![0x90; 4096];
        stubs[0x22..0x24].copy_from_slice(&[0x48, 0xcf]);
        let code = [(0x1000, vec![0x90]), (0x2000, stubs)];
        let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
        let symbols = Symbols::from_pairs([("a", 0x1000), (STUBS, 0x2000)]);
        // 7000 ops elsewhere, and 35000 in the handler: an IRETQ is 8.
        let round = [0x1000, 0x1000, 0x2020, 0x2021, 0x2022].map(record);
        let records = round.repeat(3500);
        // (period, samples, whether that many are possible)
        for (period, taken, can_be) in [
            (0x600, 2, false),
            (0x600, 3, true),
            (0x600, 32, true),
            (0x600, 33, false),
            (0x2000, 0, true),
            (0x100, 99, false),
            (0, 0, false),
        ] {
            let totals = Samples { period, taken, ..Samples::default() };
            let samples = SampledSession { totals, ..SampledSession::default() };
            let told = as_often(&samples, &records, &mut Instructions::new(code.clone()), &symbols);
            assert_eq!(told.ok(), can_be.then_some(taken), "{period:#x} {taken}");
        }
    }
}
