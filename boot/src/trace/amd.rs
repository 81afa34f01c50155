//! Runs AMD's performance counters and Instruction Based Sampling (IBS) for a workload.

use core::fmt;
use pugmark_boot::archive::Archive;
use pugmark_decoder_core::ibs::{Caps, Sample};
use pugmark_kernel::amd::counters::{self, CountedEvent, CountersRefusal, Overflow, OverflowSink};
use pugmark_kernel::amd::ibs::{self, IbsConfig, IbsRefusal, SampleSink};
use pugmark_kernel::amd::{AmdCapabilities, ConfigPorts, EilvtError, Northbridge};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::drain::Sink;
use pugmark_kernel::lapic::XApic;
use pugmark_kernel::lifecycle::{Absent, Missing, StartError};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_protocol::{EventKind, Level, Samples};

use super::plan::{Plan, Unfit};

/// Family 10h's NB_CFG. Its bit EnableCf8ExtCfg lets the configuration ports reach the extended registers.
///
/// Source: BKDG 31116, "MSRC001_001F Northbridge Configuration Register (NB_CFG)".
const NB_CFG: u32 = 0xc001_001f;
const ENABLE_CF8_EXT_CFG: u64 = 1 << 46;

/// The event to count, and how often to sample it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counting {
    /// The event select (12 bits).
    pub(super) event: u16,
    pub(super) period: Option<u32>,
}

/// Retired instructions, branches and far transfers, which all families count with the same event selects; then
/// instructions again, with an interrupt after each period.
///
/// Source: BKDG 31116, "Performance Counter Events"; PPR 56176, "Core Performance Monitor Counters".
pub(super) const COUNTED: [Counting; 4] = [
    Counting { event: 0xc0, period: None },
    Counting { event: 0xc2, period: None },
    Counting { event: 0xc6, period: None },
    Counting { event: 0xc0, period: Some(1009) },
];

/// Ops from one sample to the next, including the random start of the count. What the handler does after it lets the
/// unit go on must be shorter than that; otherwise execution would never return to the workload.
const OPS: u32 = 0x200;
/// Added if NMIs of other origin come too. If such an NMI is pending while a sample is handled, the handler is entered
/// again and looks for a sample before the workload goes on. If it found one, the next NMI would be pending again, and
/// so on forever.
const BESIDE_NMIS: u32 = 0x400;
/// Added in each further round of a workload; otherwise the samples would hit the same instructions again.
const ROUND: u32 = 0x10;
/// The period in clocks, for processors that cannot count ops. One instruction may take hundreds of clocks.
const CYCLES: u32 = 0x1000;

impl Counting {
    /// Returns the counters, and the event for them.
    pub(super) fn ready(
        self,
        plan: &Plan,
        msr: GuardedMsr,
    ) -> Result<(counters::CounterUnit<GuardedMsr>, CountedEvent), AmdFailure> {
        Unfit::without_area(plan).map_err(AmdFailure::Unfit)?;
        let unit = counters::CounterUnit::detect(this_processor, msr).map_err(AmdFailure::Counters)?;
        let level = plan.filter.level;
        let event = CountedEvent::new(self.event, 0).os(level != Level::User).user(level != Level::Os);
        Ok((unit, self.period.map_or(event, |period| event.every(period.into()))))
    }
}

/// Returns the units of IBS with their interrupt routed, their configuration for a round, and how samples are
/// reported.
pub(super) fn sampling(
    plan: &Plan,
    round: u32,
    msr: GuardedMsr,
    mut apic: XApic,
) -> Result<(ibs::IbsUnit<GuardedMsr>, IbsConfig, Samples), AmdFailure> {
    Unfit::without_area(plan).map_err(AmdFailure::Unfit)?;
    if plan.filter.level != Level::Any {
        return Err(AmdFailure::Levels);
    }
    let capabilities = AmdCapabilities::read(this_processor).map_err(AmdFailure::Vendor)?;
    let mut unit = ibs::IbsUnit::detect(this_processor, msr).map_err(AmdFailure::Ibs)?;
    let (config, event, period) = match unit.part().caps.has(Caps::OP_CNT) {
        true => {
            let ops = OPS + if plan.nmis { BESIDE_NMIS } else { 0 } + ROUND * round;
            (IbsConfig::new().op(ops).op_counts_dispatched(), EventKind::Ops, ops)
        }
        false => (IbsConfig::new().op(CYCLES), EventKind::Cycles, CYCLES),
    };
    let mut ports = match capabilities.family {
        0x10 => Some(configuration()?),
        _ => None,
    };
    let nodes = ports.as_mut().map(|ports| ports as &mut dyn Northbridge);
    unit.route(&mut apic, nodes).map_err(AmdFailure::Route)?;
    Ok((unit, config.op_random(), Samples { event, period: period.into(), ..Samples::default() }))
}

/// Gives access to the registers of family 10h's northbridge.
fn configuration() -> Result<ConfigPorts, AmdFailure> {
    let mut msr = super::session::msr();
    let value = msr.rdmsr(NB_CFG).map_err(AmdFailure::Fault)?;
    // SAFETY: lets the ports reach more registers and has no other effect.
    unsafe { msr.wrmsr(NB_CFG, value | ENABLE_CF8_EXT_CFG) }.map_err(AmdFailure::Fault)?;
    // SAFETY: the kernel is at CPL 0, and nothing else in it uses the ports; the bit is set.
    Ok(unsafe { ConfigPorts::new() })
}

/// Puts the addresses of samples into an archive, eight bytes for each.
pub(super) struct Addresses<'t, 'm> {
    pub(super) archive: &'t mut Archive<'m>,
    /// The RIP that the interrupt being served has interrupted; `None` if the interrupt was served later.
    pub(super) interrupted: Option<u64>,
    /// How many samples have no known address.
    pub(super) unplaced: &'t mut u64,
}

impl Addresses<'_, '_> {
    fn take(&mut self, address: Option<u64>) -> bool {
        match address {
            Some(address) => {
                let full = self.archive.full();
                self.archive.bytes(&address.to_le_bytes());
                self.archive.full() == full
            }
            None => {
                *self.unplaced += 1;
                true
            }
        }
    }
}

impl OverflowSink for Addresses<'_, '_> {
    fn overflow(&mut self, _: Overflow) -> bool {
        self.take(self.interrupted)
    }
}

impl SampleSink for Addresses<'_, '_> {
    fn sample(&mut self, sample: &Sample) -> bool {
        match sample {
            Sample::Op(op) => self.take(op.rip()),
            Sample::Fetch(fetch) => self.take(fetch.linear_address()),
        }
    }
}

/// Why nothing was counted or sampled.
#[derive(Debug)]
pub(crate) enum AmdFailure {
    Unfit(Unfit),
    /// IBS cannot filter by privilege level.
    Levels,
    Vendor(Missing),
    Counters(Absent),
    Count(StartError<CountersRefusal>),
    Ibs(Absent),
    Route(EilvtError),
    Sample(StartError<IbsRefusal>),
    Fault(GeneralProtection),
}

impl AmdFailure {
    /// Whether this source or this processor merely lacks what the plan needs.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Unfit(_) | Self::Levels | Self::Vendor(_) => true,
            Self::Counters(absent) | Self::Ibs(absent) => absent.is_missing(),
            Self::Count(_) | Self::Route(_) | Self::Sample(_) | Self::Fault(_) => false,
        }
    }
}

impl fmt::Display for AmdFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfit(unfit) => unfit.say("what is counted or sampled", f),
            Self::Levels => f.write_str("the samples of IBS cannot be filtered by privilege level"),
            Self::Vendor(error) => error.fmt(f),
            Self::Counters(error) => error.fmt(f),
            Self::Count(error) => error.fmt(f),
            Self::Ibs(error) => error.fmt(f),
            Self::Route(error) => error.fmt(f),
            Self::Sample(error) => error.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}
