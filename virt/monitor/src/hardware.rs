//! The counting and tracing hardware of the guest's processor, of whichever maker.

use core::fmt;

use pugmark_model::intel::Settings;
use pugmark_model::{
    CpuidResult, Delivery, GeneralProtection, PageFault, PhysMemory, Pmi, Retired, amd, intel,
};

use crate::guest::Cpu;
use crate::local_apic::{LVT_PC, LVT_RESET};
use crate::msr::Place;
use crate::tracing;

/// The processor that the guest sees.
#[derive(Clone, Copy, Debug)]
pub enum Profile {
    /// One of Intel's.
    Intel(&'static intel::Profile),
    /// One of AMD's.
    Amd(&'static amd::Profile),
}

impl Profile {
    /// The profile of that name, if its processor runs 64-bit code, as the guests do.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let intel = intel::Profile::by_name(name).filter(|profile| profile.long_mode);
        intel.map(Self::Intel).or_else(|| amd::Profile::by_name(name).map(Self::Amd))
    }

    /// The northbridge that its processors share.
    #[must_use]
    pub const fn northbridge(self) -> amd::Northbridge {
        match self {
            Self::Intel(_) => amd::Northbridge::absent(),
            Self::Amd(profile) => amd::Northbridge::new(profile),
        }
    }
}

/// IA32_PMC0.
const IA32_PMC0: u32 = 0xc1;
/// As many counters as RDPMC is asked for on Intel's processors.
const MOST_COUNTERS: u32 = 8;

/// A processor's counting and tracing hardware.
#[expect(clippy::large_enum_variant, reason = "each is made once, and lies where the processor lies")]
#[derive(Debug)]
pub enum Hardware {
    /// Intel's.
    Intel(intel::Processor),
    /// AMD's.
    Amd(amd::Processor<'static>),
}

/// What software did that the manuals warn of and that hardware does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violations {
    /// On a processor of Intel's.
    Intel(intel::Violations),
    /// On one of AMD's.
    Amd(amd::Violations),
}

/// What came to violations between two looks at one processor: ` name=count` for each kind that did.
#[derive(Clone, Copy, Debug)]
pub struct New {
    /// As they were.
    pub before: Violations,
    /// As they are.
    pub now: Violations,
}

impl fmt::Display for New {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.before, self.now) {
            (Violations::Intel(before), Violations::Intel(now)) => {
                show_new(f, &before.counts(), &now.counts())?;
                match now.first_live_edit.filter(|_| before.first_live_edit.is_none()) {
                    Some(address) => write!(f, " first_live_edit={address:#x}"),
                    None => Ok(()),
                }
            }
            (Violations::Amd(before), Violations::Amd(now)) => show_new(f, &before.counts(), &now.counts()),
            // A processor's maker does not change.
            _ => Err(fmt::Error),
        }
    }
}

fn show_new(f: &mut fmt::Formatter<'_>, before: &[(&str, u32)], now: &[(&str, u32)]) -> fmt::Result {
    let new = before.iter().zip(now).map(|((_, before), (name, now))| (name, now.wrapping_sub(*before)));
    { new }.filter(|(_, count)| *count != 0).try_for_each(|(name, count)| write!(f, " {name}={count}"))
}

impl Hardware {
    /// After a cold reset. Processors of AMD's share `northbridge`.
    #[must_use]
    pub fn new(
        profile: Profile,
        settings: Settings,
        amd_settings: amd::Settings,
        northbridge: &'static amd::Northbridge,
    ) -> Self {
        match profile {
            Profile::Intel(profile) => Self::Intel(intel::Processor::new(profile, settings)),
            Profile::Amd(profile) => Self::Amd(amd::Processor::new(profile, amd_settings, northbridge)),
        }
    }

    /// What CPUID answers, laid over what the processor below says.
    #[must_use]
    pub fn cpuid(&self, leaf: u32, subleaf: u32, below: CpuidResult) -> CpuidResult {
        match self {
            Self::Intel(processor) => processor.cpuid(leaf, subleaf, below),
            Self::Amd(processor) => processor.cpuid(leaf, subleaf, below),
        }
    }

    /// In 64-bit mode SYSENTER and SYSEXIT are instructions.
    #[must_use]
    pub const fn has_sysenter_in_long_mode(&self) -> bool {
        matches!(self, Self::Intel(_))
    }

    /// Whether RDMSR and WRMSR of `msr` come here.
    #[must_use]
    pub fn owns_msr(&self, msr: u32) -> bool {
        match self {
            Self::Intel(processor) => processor.owns_msr(msr),
            Self::Amd(processor) => processor.owns_msr(msr),
        }
    }

    /// Who answers for an MSR that does not come here.
    #[must_use]
    pub const fn place(&self, msr: u32) -> Place {
        match self {
            Self::Intel(_) => Place::of(msr),
            Self::Amd(_) => Place::on_amd(msr),
        }
    }

    /// RDMSR of such an MSR.
    ///
    /// # Errors
    /// It faults.
    pub fn read_msr(&mut self, msr: u32) -> Result<u64, GeneralProtection> {
        match self {
            Self::Intel(processor) => processor.read_msr(msr),
            Self::Amd(processor) => processor.read_msr(msr),
        }
    }

    /// WRMSR of such an MSR, at the instruction `at`, which retires here.
    ///
    /// # Errors
    /// It faults.
    pub fn write_msr(
        &mut self,
        msr: u32,
        value: u64,
        at: &Retired<'_>,
        memory: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection> {
        match self {
            Self::Intel(processor) => processor.write_msr(msr, value, at, memory),
            Self::Amd(processor) => processor.write_msr(msr, value, at, memory),
        }
    }

    /// RDPMC with `index` in ECX, where software may use it.
    ///
    /// # Errors
    /// It faults.
    pub fn rdpmc(&mut self, index: u32) -> Result<u64, GeneralProtection> {
        match self {
            Self::Intel(processor) if index < MOST_COUNTERS && processor.owns_msr(IA32_PMC0 + index) => {
                processor.read_msr(IA32_PMC0 + index)
            }
            Self::Intel(_) => Err(GeneralProtection),
            Self::Amd(processor) => processor.rdpmc(index),
        }
    }

    /// It must see each instruction.
    #[must_use]
    pub fn steps(&self) -> bool {
        match self {
            Self::Intel(processor) => processor.steps(),
            Self::Amd(processor) => processor.steps(),
        }
    }

    /// Software has something on that sees each instruction: what retires belongs into the log. On AMD's processors an
    /// interrupt may be on its way that only delays the end of stepping.
    #[must_use]
    pub fn is_on(&self) -> bool {
        match self {
            Self::Intel(processor) => processor.steps(),
            Self::Amd(processor) => processor.is_on(),
        }
    }

    /// How many instructions, none of them microcoded, may execute before it is told of the first of them: an interrupt on
    /// its way comes at its instruction, and some registers are known at an instruction that is sampled. At least one.
    #[must_use]
    pub fn in_one_go(&self) -> usize {
        let most = match self {
            Self::Intel(processor) => processor.in_one_go(),
            Self::Amd(processor) => processor.in_one_go(),
        };
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// The registers are to be told before the next instruction, with the bases of segments.
    #[must_use]
    pub fn wants_registers_before(&self) -> bool {
        matches!(self, Self::Amd(processor) if processor.wants_registers())
    }

    /// Tells the registers before the next instruction.
    pub fn set_registers_before(&mut self, cpu: &Cpu) {
        if let Self::Amd(processor) = self {
            processor.set_registers(tracing::registers_before(cpu));
        }
    }

    /// Tells the registers behind the instruction that retires now, if they are wanted; `xmm` reads those of SSE.
    pub fn give_registers_behind(&mut self, cpu: &Cpu, xmm: impl FnOnce() -> [u8; 256]) {
        if let Self::Intel(processor) = self
            && processor.wants_registers()
        {
            processor.set_registers(tracing::registers(cpu), &xmm());
        }
    }

    /// Taken branches are recorded, in memory or in registers.
    #[must_use]
    pub fn records_branches(&self) -> bool {
        match self {
            Self::Intel(processor) => processor.records_branches(),
            Self::Amd(processor) => processor.records_branches(),
        }
    }

    /// An instruction retired.
    pub fn retire(&mut self, retired: &Retired<'_>, memory: &mut dyn PhysMemory) {
        match self {
            Self::Intel(processor) => processor.retire(retired, memory),
            Self::Amd(processor) => processor.retire(retired, memory),
        }
    }

    /// An interrupt or exception was delivered.
    pub fn deliver(&mut self, delivery: &Delivery, memory: &mut dyn PhysMemory) {
        match self {
            Self::Intel(processor) => processor.deliver(delivery, memory),
            Self::Amd(processor) => processor.deliver(delivery),
        }
    }

    /// A page fault of the hardware's own, to be delivered before the next instruction.
    pub fn take_page_fault(&mut self) -> Option<PageFault> {
        match self {
            Self::Intel(processor) => processor.take_page_fault(),
            Self::Amd(_) => None,
        }
    }

    /// An interrupt that is due; there may be another one behind it.
    pub fn take_interrupt(&mut self) -> Option<Pmi> {
        match self {
            Self::Intel(processor) => processor.take_pmi(),
            Self::Amd(processor) => processor.take_interrupt(),
        }
    }

    /// The value of the local APIC's register at `offset` of its page; `below`, what is there without this hardware.
    pub fn read_apic(&self, offset: usize, below: impl FnOnce() -> u32) -> u32 {
        match self {
            Self::Intel(processor) if offset == LVT_PC => processor.lvt_pc(),
            Self::Intel(_) => below(),
            Self::Amd(processor) if processor.owns_apic(offset as u32) => processor.read_apic(offset as u32),
            Self::Amd(processor) => processor.overlay_apic(offset as u32, below()),
        }
    }

    /// Writes that register; `false`: it is not this hardware's.
    pub fn write_apic(&mut self, offset: usize, value: u32) -> bool {
        match self {
            Self::Intel(processor) if offset == LVT_PC => processor.set_lvt_pc(value),
            Self::Amd(processor) if processor.owns_apic(offset as u32) => {
                processor.write_apic(offset as u32, value);
            }
            Self::Intel(_) | Self::Amd(_) => return false,
        }
        true
    }

    /// INIT.
    pub fn init(&mut self) {
        match self {
            Self::Intel(processor) => {
                processor.set_lvt_pc(LVT_RESET);
                processor.init();
            }
            Self::Amd(processor) => processor.init(),
        }
    }

    /// What software did wrong so far without a fault.
    #[must_use]
    pub fn violations(&self) -> Violations {
        match self {
            Self::Intel(processor) => Violations::Intel(*processor.violations()),
            Self::Amd(processor) => Violations::Amd(*processor.violations()),
        }
    }
}

#[cfg(test)]
mod tests;
