//! Runs the Branch Trace Store (BTS) for a workload. The processor writes a record of each taken branch into a buffer
//! that the debug store (DS) area in memory describes.

use core::fmt;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::intel::bts::BtsConfig;
use pugmark_kernel::intel::ds::{
    AreaError, AreaPlan, BufferMode, BufferPlan, DsArea, DsConfig, DsRefusal, DsUnit, Gate, Strictness,
};
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::lifecycle::{Absent, Missing, StartError};
use pugmark_kernel::msr::GeneralProtection;
use pugmark_protocol::Level;

use super::linear::KernelLinear;
use super::plan::{Plan, Unfit};
use crate::arch::traps;

/// The length of a branch record in bytes.
const RECORD: u64 = 24;
/// The vector of NMIs.
const NMI: u8 = 2;
/// How many times larger than Intel PT's a buffer is that is not drained: a record takes 24 bytes, where PT needs a
/// bit.
const UNDRAINED: u64 = 8;

/// What is recorded, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Branches {
    config: DsConfig,
    plan: AreaPlan,
}

impl Branches {
    /// Whether the buffer is drained while records are written.
    pub(super) fn is_drained(plan: &Plan) -> bool {
        plan.mode != Mode::Overwrite
    }

    /// Returns the unit, its memory and its configuration for a plan.
    pub(super) fn ready(plan: &Plan, msr: GuardedMsr) -> Result<Ready<DsConfig>, StoreFailure> {
        let unit = DsUnit::detect(this_processor, msr).map_err(StoreFailure::Detect)?;
        let branches = Self::of(plan).map_err(|unfit| StoreFailure::Unfit("branch records", unfit))?;
        let area = DsArea::allocate(KernelLinear, unit.capabilities(), &branches.plan, Strictness::Strict)
            .map_err(StoreFailure::Area)?;
        Ok((unit, area, branches.config))
    }

    fn of(plan: &Plan) -> Result<Self, Unfit> {
        Unfit::of(plan)?;
        let filter = plan.filter;
        let bytes = match plan.layout {
            Layout::SingleRange { bytes } => bytes * UNDRAINED,
            Layout::Topa { size, regions, .. } => size.bytes() * u64::from(regions),
        };
        let mode = match plan.mode {
            Mode::Overwrite => BufferMode::Circular,
            Mode::StopWhenFull { .. } | Mode::Circular { .. } => BufferMode::INTERRUPT,
        };
        let levels = BtsConfig::new().os(filter.level != Level::User).user(filter.level != Level::Os);
        let buffer = BufferPlan { bytes: bytes - bytes % RECORD, page_offset: 0, mode };
        Ok(Self {
            config: DsConfig::new().bts(levels).gate(Gate(traps::gate(vector(plan)))),
            plan: AreaPlan::new().bts(buffer),
        })
    }
}

/// Everything that a start needs.
pub(super) type Ready<C> = (DsUnit<GuardedMsr>, DsArea<KernelLinear>, C);

/// The vector of a plan's interrupt.
pub(super) const fn vector(plan: &Plan) -> u8 {
    match plan.delivery {
        Delivery::Nmi => NMI,
        Delivery::Fixed(vector) => vector.get(),
    }
}

/// Why the debug store has no branch records or samples.
#[derive(Debug)]
pub(crate) enum StoreFailure {
    /// What was requested, and which part of the plan it cannot do.
    Unfit(&'static str, Unfit),
    NoSamples(Missing),
    Detect(Absent),
    Area(AreaError),
    Start(StartError<DsRefusal>),
    Stop(GeneralProtection),
}

impl StoreFailure {
    /// Whether this source or this processor merely lacks what the plan needs.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Unfit(..) | Self::NoSamples(_) => true,
            Self::Detect(absent) => absent.is_missing(),
            Self::Start(StartError::Refused(refusal)) => {
                matches!(refusal, DsRefusal::Bts(_) | DsRefusal::Pebs(_))
            }
            _ => false,
        }
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfit(what, unfit) => unfit.say(what, f),
            Self::NoSamples(absent) => absent.fmt(f),
            Self::Detect(error) => error.fmt(f),
            Self::Area(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
            Self::Stop(fault) => write!(f, "the recording does not stop: {fault}"),
        }
    }
}
