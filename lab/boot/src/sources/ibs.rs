//! AMD's Instruction Based Sampling (IBS): the processor follows every n-th op through its pipeline, and interrupts
//! when the op has retired.

use alloc::boxed::Box;
use pugmark_decoder_core::ibs::Caps;
use pugmark_kernel::amd::ibs::{IbsConfig, IbsRunning, IbsUnit, SampleSink};
use pugmark_kernel::amd::{AmdCapabilities, ConfigPorts, Northbridge};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_protocol::{EventKind, Level, Samples};

use super::addresses::Addresses;
use super::source::Source;
use crate::arch::registers;
use crate::plan::Plan;
use crate::report::{Recorded, RecordingError, SessionReport};
use crate::session::{Prepared, Running, Serve, SourceError, Stopped};

/// Family 10h's NB_CFG. Its bit EnableCf8ExtCfg lets the configuration ports reach the extended registers.
///
/// Source: BKDG 31116, "MSRC001_001F Northbridge Configuration Register (NB_CFG)".
const NB_CFG: u32 = 0xc001_001f;
const ENABLE_CF8_EXT_CFG: u64 = 1 << 46;

/// Ops from one sample to the next, including the random start of the count. The part of the handler after it resumes
/// the unit must be shorter; otherwise execution would never return to the workload.
const OPS: u32 = 0x200;
/// Added if NMIs of other origin come too. If such an NMI is pending while a sample is handled, the handler is entered
/// again and looks for a sample before the workload continues. If it found one, the next NMI would be pending again,
/// and so on forever.
const BESIDE_NMIS: u32 = 0x400;
/// Added in each further pass; otherwise the samples would hit the same instructions again.
const PASS: u32 = 0x10;
/// The period in clocks, for processors that cannot count ops. One instruction may take hundreds of clocks.
const CYCLES: u32 = 0x1000;

/// Instruction Based Sampling.
pub(super) struct InstructionSampling;

impl Source for InstructionSampling {
    fn passes(&self, rounds: u32) -> u32 {
        rounds
    }

    fn prepare(&self, pass: u32, plan: &Plan) -> Result<Prepared, SourceError> {
        plan.require("what is counted or sampled", &[]).map_err(SourceError::refused)?;
        if plan.filter.level != Level::Any {
            return Err(SourceError::refused("the samples of IBS cannot be filtered by privilege level"));
        }
        let capabilities = AmdCapabilities::read(this_processor).map_err(SourceError::refused)?;
        let mut unit = IbsUnit::detect(this_processor, registers::msr()).map_err(SourceError::absent)?;
        let (config, event, period) = match unit.part().caps.has(Caps::OP_CNT) {
            true => {
                let ops = OPS + if plan.nmis { BESIDE_NMIS } else { 0 } + PASS * pass;
                (IbsConfig::new().op(ops).op_counts_dispatched(), EventKind::Ops, ops)
            }
            false => (IbsConfig::new().op(CYCLES), EventKind::Cycles, CYCLES),
        };
        let mut ports = match capabilities.family {
            0x10 => Some(configuration().map_err(SourceError::failed)?),
            _ => None,
        };
        let nodes = ports.as_mut().map(|ports| ports as &mut dyn Northbridge);
        unit.route(&mut registers::local_apic_page(), nodes).map_err(SourceError::failed)?;
        let config = config.op_random();
        let samples = Samples { event, period: period.into(), ..Samples::default() };
        let addresses = Addresses::new();
        Ok(Prepared::by_nmi(Handler::extended(), move || {
            let running = unit.start(&config).map_err(|failed| SourceError::failed(failed.error()))?;
            Ok(RunningIbs { running, addresses, samples })
        }))
    }
}

/// Gives access to the registers of family 10h's northbridge.
fn configuration() -> Result<ConfigPorts, GeneralProtection> {
    let mut msr = registers::msr();
    let value = msr.rdmsr(NB_CFG)?;
    // SAFETY: lets the ports reach more registers and has no other effect.
    unsafe { msr.wrmsr(NB_CFG, value | ENABLE_CF8_EXT_CFG) }?;
    // SAFETY: the kernel is at CPL 0, and nothing else in it uses the ports; the bit is set.
    Ok(unsafe { ConfigPorts::new() })
}

struct RunningIbs {
    running: IbsRunning<GuardedMsr>,
    addresses: Addresses,
    /// The event and its period.
    samples: Samples,
}

impl Running for RunningIbs {
    fn serve(&mut self, interrupted: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection> {
        serve(&mut [&mut self.running.source(&mut self.addresses.sink(interrupted))])
    }

    fn stop(self: Box<Self>, handler: &mut Handler) -> Result<Stopped, SourceError> {
        let Self { running, mut addresses, samples } = *self;
        let stopped =
            running.stop().map_err(|failed| SourceError::does_not_stop(failed.fault))?.expect(handler);
        let mut sink = addresses.sink(None);
        let left_out = stopped.last().map(|sample| sink.sample(sample)).filter(|kept| !kept).count();
        let samples = Samples {
            lost: stopped.counts.lost + left_out as u64,
            unplaced: addresses.unplaced + stopped.counts.unplaced,
            ..samples
        };
        Ok(Stopped::new(SampledOps { addresses, samples }, Loss::default()))
    }
}

struct SampledOps {
    addresses: Addresses,
    /// The counts of samples without an address.
    samples: Samples,
}

impl Recorded for SampledOps {
    fn report(&self, session: &SessionReport<'_>) -> Result<(), RecordingError> {
        session.say_addresses(self.samples, &self.addresses.kept);
        session.say_code_and_losses(self.addresses.kept.full());
        Ok(())
    }
}
