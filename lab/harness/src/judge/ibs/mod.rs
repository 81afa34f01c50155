//! AMD's Instruction Based Sampling (IBS): checks that samples are where the workload ran, and as frequent.
//!
//! IBS tags one op after each period and reports how it was executed.

use anyhow::{Context, Result, ensure};
use pugmark_protocol::EventKind;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::fit::Fit;
use super::samples::none_missing;
use super::stubs::nmi_handler;
use super::{Conditions, Evidence, Judge, ended_well};
use crate::code;
use crate::instructions::Instructions;
use crate::report::SampledSession;
use crate::symbols::Symbols;
use crate::truth::Record;

/// The workload with NMIs of other origin: samples in their handler shift the distribution.
const OTHERS_NMIS: &str = "foreign-nmis";

/// Below this probability a workload's samples have another distribution. It is so small because there are many
/// workloads.
const IMPOSSIBLE: f64 = 1e-6;

/// Samples that agree with the truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IbsVerdict {
    /// The fit of the samples of ops.
    Fits(Fit),
    /// The number of samples, all at instructions that retired, if no distribution can be expected.
    Retired(u64),
}

impl fmt::Display for IbsVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fits(fit) => fit.fmt(f),
            Self::Retired(samples) => write!(f, "samples={samples} retired"),
        }
    }
}

impl Judge for IbsVerdict {
    const WORD: &'static str = "ibs";
    const TITLE: &'static str = "Instruction Based Sampling";

    /// Checks that each sample is at an instruction that retired, and that ops are sampled as often as they retire.
    fn judge(evidence: &Evidence<'_>, _: &Conditions<'_>) -> Result<Self> {
        let Evidence { run, truth, symbols, image } = *evidence;
        ended_well(run)?;
        ensure!(run.lost.total() == 0, "the guest lost {}", run.lost);
        let mut instructions = Instructions::new(code::of(run, image)?);
        let records = |samples: &SampledSession| truth.session(samples.totals.session);
        for samples in &run.samples {
            all_retired(samples, records(samples))?;
        }
        ensure!(!run.samples.is_empty(), "no session has samples");
        let unplaced: u64 = run.samples.iter().map(|samples| samples.totals.unplaced).sum();
        ensure!(unplaced == 0, "{unplaced} samples have no address");
        if run.samples.iter().any(|samples| samples.totals.event != EventKind::Ops) {
            return by_clocks(&run.samples).map(Self::Retired);
        }
        if run.name == OTHERS_NMIS {
            let often = |samples| as_often(samples, records(samples), &mut instructions, symbols);
            return run.samples.iter().map(often).sum::<Result<u64>>().map(Self::Retired);
        }
        let fits =
            run.samples.iter().map(|samples| fit(samples, records(samples), &mut instructions, symbols));
        let fit: Fit = fits.sum::<Result<Fit>>()?;
        ensure!(fit.p_value() > IMPOSSIBLE, "the samples are not distributed as the truth is: {fit}");
        ensure!(fit.samples > 0, "there are no samples");
        Ok(Self::Fits(fit))
    }
}

/// Returns the number of samples taken by clocks. The shortest workload takes longer than one period.
///
/// # Errors
/// If a session has no samples.
fn by_clocks(sessions: &[SampledSession]) -> Result<u64> {
    for SampledSession { totals: session, .. } in sessions {
        ensure!(session.taken > 0, "there are no samples in session {}", session.session);
    }
    Ok(sessions.iter().map(|session| session.totals.taken).sum())
}

/// Checks that each sample is at an instruction that retired, and that no sample is missing.
///
/// # Errors
/// If an address is not in the truth, or the numbers do not add up.
fn all_retired(samples: &SampledSession, records: &[Record]) -> Result<()> {
    let retired: HashSet<u64> = records.iter().map(|record| record.rip).collect();
    let stray = samples.addresses.keys().find(|address| !retired.contains(address));
    ensure!(stray.is_none(), "sampled at {:#x}, where nothing retired", stray.unwrap_or(&0));
    none_missing(samples)
}

/// Computes the fit of the sampled ops to the ops that could be sampled, function by function.
///
/// The unit counts nothing from a sample until its handler resumes it, and the rest of the handler is shorter than a
/// period. So no op in the NMI handler is sampled, and all others are equally probable.
///
/// # Errors
/// If a record's address has no instruction, or the image has no stubs.
fn fit(
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

/// Checks that ops were sampled as often as they retired while NMIs of other origin come too. The unit counts in the
/// handler of such an NMI, but not in that of its own. So it counted at least the ops outside the handler, and at most
/// all.
///
/// # Errors
/// If there are too few or too many samples, a record's address has no instruction, or the image has no stubs.
fn as_often(
    samples: &SampledSession,
    records: &[Record],
    instructions: &mut Instructions,
    symbols: &Symbols,
) -> Result<u64> {
    ensure!(samples.totals.period > RANDOM, "all of a period of {} is random", samples.totals.period);
    let (mut elsewhere, mut all) = (0, 0);
    each_op(records, instructions, nmi_handler(symbols)?, |_, ops, in_handler| {
        all += ops;
        elsewhere += if in_handler { 0 } else { ops };
    })?;
    let possible = elsewhere / (samples.totals.period + RANDOM)..=all / (samples.totals.period - RANDOM);
    let taken = samples.totals.taken;
    ensure!(possible.contains(&taken), "{taken} samples, instead of a number in {possible:?}");
    Ok(taken)
}

/// The random part of a period: it may start up to 127 ops early, or end up to 240 ops late.
const RANDOM: u64 = 0x100;

/// Calls `each` for each retired instruction with its address, its ops, and `true` if it was in the NMI handler.
fn each_op(
    records: &[Record],
    instructions: &mut Instructions,
    handler: u64,
    mut each: impl FnMut(u64, u64, bool),
) -> Result<()> {
    let mut in_handler = false;
    for record in records.iter().filter(|record| !record.flags.is_software_interrupt()) {
        let kind = instructions.of(record)?;
        in_handler |= record.rip == handler;
        each(record.rip, kind.ops, in_handler);
        in_handler &= !kind.returns_from_handler;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
