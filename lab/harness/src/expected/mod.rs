//! The table of expectations: the behaviour of each source with each workload on each profile.
//!
//! A profile is a processor that the monitor presents. The rules are in `rules.rs`. [`check`] compares a run with them;
//! if something is recorded, it asks the source's judge.

use anyhow::{Result, bail, ensure};

use crate::judge::{Conditions, Evidence, Source, Verdict};
use crate::workloads::{self, WORKLOADS};
use rules::RULES;

mod rules;
#[cfg(test)]
mod tests;

/// Intel's processors, oldest first.
const INTEL: &[&str] =
    &["prescott", "core2", "nehalem", "broadwell", "skylake", "icelake", "sapphire-rapids"];

/// AMD's processors, oldest first.
const AMD: &[&str] = &["k8", "barcelona", "trinity", "zen2", "zen3", "zen4", "zen5", "zen6"];

/// The driver's response to a workload's request to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Does the whole request.
    Traces,
    /// Declines the request. The reason begins with this text.
    Declines(&'static str),
    /// Declines the last part of the request and does the others. The reason begins with this text.
    DeclinesLast(&'static str),
}

/// Returns all profiles, Intel's first.
pub fn all_profiles() -> impl Iterator<Item = &'static str> {
    INTEL.iter().chain(AMD).copied()
}

/// Returns the profiles that have a source, on which it records some workload.
#[must_use]
pub fn profiles(source: Source) -> Vec<&'static str> {
    let records = |profile: &str| {
        let mut all = WORKLOADS.iter().map(|workload| expected(source, workload.name, profile));
        all.any(|expected| !matches!(expected, Ok(Expected::Declines(_))))
    };
    all_profiles().filter(|profile| records(profile)).collect()
}

/// Returns the behaviour of a source with a workload on a profile: that of the first rule that applies, otherwise
/// [`Expected::Traces`].
///
/// # Errors
/// If there is no such workload or profile.
pub fn expected(source: Source, workload: &str, profile: &str) -> Result<Expected> {
    workloads::find(workload)?;
    ensure!(all_profiles().any(|name| name == profile), "{profile} is no profile");
    let rule = RULES.iter().find(|rule| rule.applies(source, workload, profile));
    Ok(rule.map_or(Expected::Traces, |rule| rule.expected))
}

/// Checks that a run matches the table: the driver declined as expected, for the right reason, and the recording agrees
/// with the truth. Returns `None` if the whole request was declined.
///
/// # Errors
/// Returns the reason of the failure.
pub fn check(source: Source, profile: &str, evidence: &Evidence<'_>) -> Result<Option<Verdict>> {
    let run = evidence.run;
    let workload = workloads::of_run(&run.name);
    let expected = expected(source, workload, profile)?;
    let last_declined = match (expected, run.refusal.as_deref()) {
        (Expected::Traces, None) => false,
        (Expected::DeclinesLast(text), Some(reason)) if reason.starts_with(text) => true,
        (Expected::Declines(text), Some(reason)) if reason.starts_with(text) && run.traces_nothing() => {
            return Ok(None);
        }
        (Expected::Declines(_), Some(reason)) if !run.traces_nothing() => {
            bail!("the driver declined with {reason:?}, and recorded something or did not end well")
        }
        (Expected::Traces, Some(reason)) => bail!("the driver declined with {reason:?}, and should not have"),
        (Expected::Declines(text) | Expected::DeclinesLast(text), reason) => {
            bail!("the driver declined with {reason:?}, instead of {text:?}")
        }
    };
    let loss = workloads::find(workload)?.loss;
    source
        .judge(evidence, &Conditions { profile, is_intel: INTEL.contains(&profile), loss, last_declined })
        .map(Some)
}
