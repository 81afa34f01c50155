//! The configuration of IBS.

use crate::msr::amd::{IbsFetchCtl, IbsOpCtl};
use crate::msr::amd::{IbsFetchCtl2, IbsOpCtl2};
use core::fmt;
use pugmark_decoder_core::ibs::{Caps, IbsErrata, Part};

/// The samples to take: of ops, fetches, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbsConfig {
    fetch: Option<Fetch>,
    op: Option<Op>,
    levels: Levels,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fetch {
    period: u32,
    random: bool,
    l3_miss_only: bool,
    latency: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Op {
    period: u32,
    dispatched: bool,
    random: bool,
    l3_miss_only: bool,
    latency: Option<u16>,
    streaming_stores: bool,
}

/// The privilege levels whose samples are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Levels {
    #[default]
    All,
    Kernel,
    User,
}

/// The register values that start the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) fetch: Option<(IbsFetchCtl, IbsFetchCtl2)>,
    pub(super) op: Option<(IbsOpCtl, IbsOpCtl2)>,
    /// True if software randomizes bits 7:4 of the op period at the start of each period.
    pub(super) op_random: bool,
    pub(super) levels: Levels,
}

/// The granularity of a period: the low four bits are not compared.
const STEP: u32 = 16;
/// The shortest period of ops: IbsOpMaxCnt of 1 to 8 is reserved.
const LEAST_OP: u32 = 0x90;
/// The shortest period that allows random bits 7:4.
const LEAST_RANDOM: u32 = 0x100;
/// The longest period with 20 bits.
const MOST: u32 = 0xf_fff0;
/// The longest period with 27 bits.
const MOST_EXTENDED: u32 = 0x7ff_fff0;
/// The granularity of a latency, in cycles.
const LATENCY_STEP: u16 = 128;
const MOST_FETCH_LATENCY: u16 = 1920;
const MOST_OP_LATENCY: u16 = 2048;

impl IbsConfig {
    /// Returns a configuration that samples nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Samples one in `period` completed fetches: a multiple of 16, up to `0xffff0`.
    #[must_use]
    pub const fn fetch(mut self, period: u32) -> Self {
        let fetch = match self.fetch {
            Some(fetch) => fetch,
            None => Fetch { period, random: false, l3_miss_only: false, latency: None },
        };
        self.fetch = Some(Fetch { period, ..fetch });
        self
    }

    /// Makes the low four bits of the fetch period random (IbsRandEn).
    #[must_use]
    pub const fn fetch_random(mut self) -> Self {
        if let Some(fetch) = &mut self.fetch {
            fetch.random = true;
        }
        self
    }

    /// Samples only fetches that took this many cycles: a multiple of 128 up to 1920.
    #[must_use]
    pub const fn fetch_latency(mut self, cycles: u16) -> Self {
        if let Some(fetch) = &mut self.fetch {
            fetch.latency = Some(cycles);
        }
        self
    }

    /// Samples one op every `period` cycles: a multiple of 16, from `0x90` to `0xffff0`, or to `0x7fffff0` with
    /// [`Caps::OP_CNT_EXT`].
    ///
    /// The period must be longer than the time from the point where the kernel's handler resumes the unit, through its
    /// end, to the point in its next run where it looks for a sample. Otherwise the interrupted code makes no progress:
    /// a pending NMI runs the handler again before anything else, and a sample found then has a pending NMI too, and so
    /// on.
    #[must_use]
    pub const fn op(mut self, period: u32) -> Self {
        let op = match self.op {
            Some(op) => op,
            None => Op {
                period,
                dispatched: false,
                random: false,
                l3_miss_only: false,
                latency: None,
                streaming_stores: false,
            },
        };
        self.op = Some(Op { period, ..op });
        self
    }

    /// Makes the op unit count dispatched ops instead of cycles (IbsOpCntCtl).
    #[must_use]
    pub const fn op_counts_dispatched(mut self) -> Self {
        if let Some(op) = &mut self.op {
            op.dispatched = true;
        }
        self
    }

    /// Makes bits 7:4 of the op period random, so that sampling does not synchronize with a loop. A processor that
    /// starts its count at a random value ([`Caps::RD_WR_OP_CNT`]) always does so, and the period is unchanged. On
    /// other processors the period must be 256 or more.
    #[must_use]
    pub const fn op_random(mut self) -> Self {
        if let Some(op) = &mut self.op {
            op.random = true;
        }
        self
    }

    /// Samples only loads that took more than `cycles`: a multiple of 128 up to 2048. On Zen 5 they must also have
    /// missed the L3 cache: there this filter works only together with that one ([`IbsErrata::LATENCY_NEEDS_L3_MISS`]).
    #[must_use]
    pub const fn op_latency(mut self, cycles: u16) -> Self {
        if let Some(op) = &mut self.op {
            op.latency = Some(cycles);
        }
        self
    }

    /// Samples only streaming stores.
    #[must_use]
    pub const fn op_streaming_stores(mut self) -> Self {
        if let Some(op) = &mut self.op {
            op.streaming_stores = true;
        }
        self
    }

    /// Samples only fetches and ops that missed the L3 cache, for the units selected so far.
    #[must_use]
    pub const fn l3_miss_only(mut self) -> Self {
        if let Some(fetch) = &mut self.fetch {
            fetch.l3_miss_only = true;
        }
        if let Some(op) = &mut self.op {
            op.l3_miss_only = true;
        }
        self
    }

    /// Keeps only samples of the kernel: those whose address has bit 63 set. If the processor cannot filter, the driver
    /// drops the others when it reads them.
    #[must_use]
    pub const fn kernel_only(mut self) -> Self {
        self.levels = Levels::Kernel;
        self
    }

    /// Keeps only samples of user code; otherwise like [`IbsConfig::kernel_only`].
    #[must_use]
    pub const fn user_only(mut self) -> Self {
        self.levels = Levels::User;
        self
    }

    /// Checks that the units of this processor support the configuration.
    ///
    /// # Errors
    ///
    /// The part that the units do not support.
    pub fn check(&self, part: &Part) -> Result<(), IbsRefusal> {
        self.plan(part).map(|_| ())
    }

    pub(super) fn plan(&self, part: &Part) -> Result<Plan, IbsRefusal> {
        let caps = part.caps;
        if self.fetch.is_none() && self.op.is_none() {
            return Err(IbsRefusal::Nothing);
        }
        let fetch = self.fetch.map(|fetch| self.plan_fetch(&fetch, caps)).transpose()?;
        let op = self.op.map(|op| self.plan_op(&op, part)).transpose()?;
        let op_random = self.op.is_some_and(|op| op.random) && !caps.has(Caps::RD_WR_OP_CNT);
        Ok(Plan { fetch, op, op_random, levels: self.levels })
    }

    fn plan_fetch(&self, fetch: &Fetch, caps: Caps) -> Result<(IbsFetchCtl, IbsFetchCtl2), IbsRefusal> {
        need(caps, true, Caps::FETCH_SAM)?;
        check_period(fetch.period, STEP, MOST)?;
        need(caps, fetch.l3_miss_only, Caps::ZEN4)?;
        need(caps, fetch.latency.is_some(), Caps::FETCH_LAT)?;
        need(caps, fetch.latency.is_some(), Caps::DIS)?;
        let mut ctl = IbsFetchCtl::empty().with_max_count(fetch.period);
        ctl.set(IbsFetchCtl::RAND_EN, fetch.random);
        ctl.set(IbsFetchCtl::L3_MISS_ONLY, fetch.l3_miss_only);
        let mut ctl2 = IbsFetchCtl2::empty();
        if let Some(cycles) = fetch.latency {
            check_latency(cycles, MOST_FETCH_LATENCY)?;
            ctl2 |= IbsFetchCtl2::from_bits_retain(u64::from(cycles / LATENCY_STEP) << 1);
        }
        if caps.has(Caps::BIT63) {
            ctl2.set(IbsFetchCtl2::EXCLUDE_BIT63_0, self.levels == Levels::Kernel);
            ctl2.set(IbsFetchCtl2::EXCLUDE_BIT63_1, self.levels == Levels::User);
        }
        Ok((ctl, ctl2))
    }

    fn plan_op(&self, op: &Op, part: &Part) -> Result<(IbsOpCtl, IbsOpCtl2), IbsRefusal> {
        let caps = part.caps;
        need(caps, true, Caps::OP_SAM)?;
        let most = if caps.has(Caps::OP_CNT_EXT) { MOST_EXTENDED } else { MOST };
        check_period(op.period, LEAST_OP, most)?;
        if op.random && !caps.has(Caps::RD_WR_OP_CNT) && op.period < LEAST_RANDOM {
            return Err(IbsRefusal::RandomPeriod { period: op.period });
        }
        need(caps, op.dispatched, Caps::OP_CNT)?;
        need(caps, op.l3_miss_only, Caps::ZEN4)?;
        need(caps, op.latency.is_some(), Caps::LD_LAT)?;
        need(caps, op.streaming_stores, Caps::STRM_ST_RMT_SOCKET)?;
        need(caps, op.streaming_stores, Caps::DIS)?;
        let mut ctl = IbsOpCtl::empty().with_extended_max_count(op.period);
        ctl.set(IbsOpCtl::CNT_CTL, op.dispatched);
        let needs_l3_miss = op.latency.is_some() && part.errata().has(IbsErrata::LATENCY_NEEDS_L3_MISS);
        ctl.set(IbsOpCtl::L3_MISS_ONLY, op.l3_miss_only || needs_l3_miss);
        if let Some(cycles) = op.latency {
            check_latency(cycles, MOST_OP_LATENCY)?;
            let threshold = u64::from(cycles / LATENCY_STEP - 1) << 59;
            ctl |= IbsOpCtl::LD_LAT_EN | IbsOpCtl::from_bits_retain(threshold);
        }
        let mut ctl2 = IbsOpCtl2::empty();
        ctl2.set(IbsOpCtl2::STRM_ST_FILTER, op.streaming_stores);
        if caps.has(Caps::BIT63) {
            ctl2.set(IbsOpCtl2::EXCLUDE_BIT63_0, self.levels == Levels::Kernel);
            ctl2.set(IbsOpCtl2::EXCLUDE_BIT63_1, self.levels == Levels::User);
        }
        Ok((ctl, ctl2))
    }
}

impl Levels {
    /// Returns whether a sample at `address` is kept; `None` if a filter needs the address and it is unknown.
    pub(super) fn keep(self, address: Option<u64>) -> Option<bool> {
        match self {
            Self::All => Some(true),
            Self::Kernel => address.map(|address| address >> 63 == 1),
            Self::User => address.map(|address| address >> 63 == 0),
        }
    }
}

fn check_period(period: u32, least: u32, most: u32) -> Result<(), IbsRefusal> {
    match (least..=most).contains(&period) && period % STEP == 0 {
        true => Ok(()),
        false => Err(IbsRefusal::Period { period, least, most }),
    }
}

fn check_latency(cycles: u16, most: u16) -> Result<(), IbsRefusal> {
    match (LATENCY_STEP..=most).contains(&cycles) && cycles % LATENCY_STEP == 0 {
        true => Ok(()),
        false => Err(IbsRefusal::Latency { cycles, most }),
    }
}

fn need(caps: Caps, wanted: bool, cap: Caps) -> Result<(), IbsRefusal> {
    match !wanted || caps.has(cap) {
        true => Ok(()),
        false => Err(IbsRefusal::Missing(cap)),
    }
}

/// The reason why the units cannot sample as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IbsRefusal {
    /// Neither fetches nor ops were requested.
    Nothing,
    /// [`IbsUnit::route`](super::IbsUnit::route) was not called to make the units' interrupt an NMI.
    NotRouted,
    /// CPUID does not announce this capability.
    Missing(Caps),
    /// The period is not a multiple of 16 in the range.
    Period {
        /// The requested period.
        period: u32,
        /// The shortest period.
        least: u32,
        /// The longest period.
        most: u32,
    },
    /// A period with random bits 7:4 must be 256 or more.
    RandomPeriod {
        /// The requested period.
        period: u32,
    },
    /// The latency is not a multiple of 128 in the range from 128.
    Latency {
        /// The requested latency, in cycles.
        cycles: u16,
        /// The longest latency.
        most: u16,
    },
}

impl fmt::Display for IbsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("neither fetches nor ops are to be sampled"),
            Self::NotRouted => f.write_str("the interrupt of IBS is not routed"),
            Self::Missing(caps) => {
                write!(f, "CPUID.8000_001BH:EAX[{}] is not there", caps.0.trailing_zeros())
            }
            Self::Period { period, least, most } => {
                write!(f, "the period {period:#x} is no multiple of 16 from {least:#x} to {most:#x}")
            }
            Self::RandomPeriod { period } => write!(f, "the random period {period:#x} is below 0x100"),
            Self::Latency { cycles, most } => {
                write!(f, "the latency {cycles} is no multiple of 128 from 128 to {most}")
            }
        }
    }
}

impl core::error::Error for IbsRefusal {}
