//! Runs the last branch records (LBR) for a workload.

use core::fmt;
use pugmark_boot::archive::Archive;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::drain::Sink;
use pugmark_kernel::intel::lbr::{Branch, LbrConfig, LbrRefusal, LbrRunning, LbrUnit};
use pugmark_kernel::lifecycle::{Absent, StartError};
use pugmark_kernel::msr::GeneralProtection;
use pugmark_protocol::Level;

use super::plan::{Plan, Unfit};

/// The most records that any processor has.
const MOST: usize = 32;

/// Returns the unit, still off, and its configuration: to record all branches, or the calls that have not returned.
pub(super) fn ready(
    calls: bool,
    plan: &Plan,
    msr: GuardedMsr,
) -> Result<(LbrUnit<GuardedMsr>, LbrConfig), LastFailure> {
    let unit = LbrUnit::detect(this_processor, msr).map_err(LastFailure::Absent)?;
    Unfit::without_area(plan).map_err(LastFailure::Unfit)?;
    let level = plan.filter.level;
    let config = LbrConfig::new().os(level != Level::User).user(level != Level::Os).call_stack(calls);
    // Check now, before a session is announced.
    let refused = |refusal| LastFailure::Start(StartError::Refused(refusal));
    config.check(unit.capabilities()).map_err(refused)?;
    Ok((unit, config))
}

/// Stops the unit and archives its records, the newest first: source and target of each.
pub(super) fn finish(
    running: LbrRunning<GuardedMsr>,
    archive: &mut Archive<'_>,
) -> Result<(), GeneralProtection> {
    let mut unit = running.stop().map_err(|failed| failed.fault)?;
    for branch in unit.last(&mut [Branch::default(); MOST])? {
        for address in [branch.from, branch.to] {
            archive.bytes(&address.to_le_bytes());
        }
    }
    Ok(())
}

/// Source and target of each archived record.
pub(super) fn kept(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let (words, _) = bytes.as_chunks();
    let (pairs, _) = words.as_chunks();
    pairs.iter().map(|[from, to]| (u64::from_le_bytes(*from), u64::from_le_bytes(*to)))
}

/// Why there are no last branch records.
#[derive(Debug)]
pub(crate) enum LastFailure {
    Unfit(Unfit),
    Absent(Absent),
    Start(StartError<LbrRefusal>),
    Stop(GeneralProtection),
}

impl LastFailure {
    /// Whether this source or this processor merely lacks what the plan needs.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Unfit(_) | Self::Start(StartError::Refused(_)) => true,
            // An emulator may not have the registers.
            Self::Absent(Absent::NotBacked(_)) => true,
            Self::Absent(absent) => absent.is_missing(),
            Self::Start(_) | Self::Stop(_) => false,
        }
    }
}

impl fmt::Display for LastFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfit(unfit) => unfit.say("last branches", f),
            Self::Absent(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
            Self::Stop(fault) => write!(f, "the recording does not stop: {fault}"),
        }
    }
}
