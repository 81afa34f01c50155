//! The counting and tracing hardware of the guest's processor, Intel's or AMD's.

use core::fmt;
use core::ops::{Deref, DerefMut};

use pugmark_model::amd::{AmdProcessor, AmdProfile, AmdSettings, Northbridge};
use pugmark_model::intel::{IntelProcessor, IntelProfile, IntelSettings};
use pugmark_model::{Processor, Violations};

use crate::guest::Cpu;
use crate::msr::MsrHandler;
use crate::tracing;

/// The processor that the guest sees.
#[derive(Clone, Copy, Debug)]
pub enum Profile {
    /// An Intel processor.
    Intel(&'static IntelProfile),
    /// An AMD processor.
    Amd(&'static AmdProfile),
}

impl Profile {
    /// Returns the profile of that name, if its processor runs 64-bit code, which the guests need.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let intel = IntelProfile::by_name(name).filter(|profile| profile.long_mode);
        intel.map(Self::Intel).or_else(|| AmdProfile::by_name(name).map(Self::Amd))
    }

    /// Iterates over the names that [`Profile::by_name`] finds.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let intel =
            IntelProfile::all().iter().filter(|profile| profile.long_mode).map(|profile| profile.name);
        intel.chain(AmdProfile::all().iter().map(|profile| profile.name))
    }

    /// Calls `tell` for each event that the general-purpose counters can count: event select, and on Intel's processors
    /// the unit mask from bit 8 on.
    pub fn each_event(self, tell: impl FnMut(u16)) {
        match self {
            Self::Intel(profile) => {
                let events = profile.counters.as_ref().map_or(&[][..], |counters| counters.events);
                events.iter().map(|event| u16::from_le_bytes([event.select, event.umask])).for_each(tell);
            }
            Self::Amd(profile) => profile.event_selects().for_each(tell),
        }
    }

    /// Returns the frequency of the time-stamp counter in Hz, as the processor's CPUID and MSRs report it.
    #[must_use]
    pub const fn tsc_hz(self) -> u64 {
        match self {
            Self::Intel(profile) => profile.tsc_hz(),
            Self::Amd(profile) => profile.tsc_mhz as u64 * 1_000_000,
        }
    }

    /// Returns the northbridge that the profile's processors share.
    #[must_use]
    pub const fn northbridge(self) -> Northbridge {
        match self {
            Self::Intel(_) => Northbridge::absent(),
            Self::Amd(profile) => Northbridge::new(profile),
        }
    }
}

/// A processor's counting and tracing hardware. It dereferences to [`Processor`] for the functions common to both
/// vendors; the methods here are those that differ.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "each processor has one, in the box of its `Vcpu`")]
pub enum Hardware {
    /// Intel's.
    Intel(IntelProcessor),
    /// AMD's.
    Amd(AmdProcessor<'static>),
}

/// The violations that were added between two samples of one processor: ` name=count` for each kind that occurred.
#[derive(Clone, Copy, Debug)]
pub struct NewViolations {
    /// The counts of the first sample.
    pub before: Violations,
    /// The counts of the second sample.
    pub now: Violations,
}

impl fmt::Display for NewViolations {
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
    /// Returns the hardware after a cold reset. AMD processors share `northbridge`.
    #[must_use]
    pub fn new(
        profile: Profile,
        settings: IntelSettings,
        amd_settings: AmdSettings,
        northbridge: &'static Northbridge,
    ) -> Self {
        match profile {
            Profile::Intel(profile) => Self::Intel(IntelProcessor::new(profile, settings)),
            Profile::Amd(profile) => Self::Amd(AmdProcessor::new(profile, amd_settings, northbridge)),
        }
    }

    /// Returns true if SYSENTER and SYSEXIT are valid instructions in 64-bit mode.
    #[must_use]
    pub const fn has_sysenter_in_long_mode(&self) -> bool {
        matches!(self, Self::Intel(_))
    }

    /// Returns the part of the monitor that handles an MSR without a model here.
    #[must_use]
    pub const fn msr_handler(&self, msr: u32) -> MsrHandler {
        match self {
            Self::Intel(_) => MsrHandler::on_intel(msr),
            Self::Amd(_) => MsrHandler::on_amd(msr),
        }
    }

    /// Returns true if Intel PT is on.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        matches!(self, Self::Intel(processor) if processor.is_traced())
    }

    /// Returns true if the hardware traces only user-mode code: nothing that executes at privilege level 0 changes its
    /// records, or the time of its interrupts.
    #[must_use]
    pub fn sees_nothing_of_the_kernel(&self) -> bool {
        matches!(self, Self::Intel(processor) if processor.traces_programs_only())
    }

    /// Returns true if the hardware needs the registers, with the segments' bases, before the next instruction.
    #[must_use]
    pub fn needs_registers_before(&self) -> bool {
        matches!(self, Self::Amd(processor) if processor.wants_registers())
    }

    /// Sets the registers before the next instruction.
    pub fn set_registers_before(&mut self, cpu: &Cpu) {
        if let Self::Amd(processor) = self {
            processor.set_registers(tracing::registers_before(cpu));
        }
    }

    /// Sets the registers after the instruction that retires now, if they are needed; `xmm` reads the SSE registers.
    pub fn set_registers_after(&mut self, cpu: &Cpu, xmm: impl FnOnce() -> [u8; 256]) {
        if let Self::Intel(processor) = self
            && processor.wants_registers()
        {
            processor.set_registers(tracing::registers(cpu), &xmm());
        }
    }

    /// Reads the local APIC's register at `offset` of its page; `below` reads the physical local APIC's register.
    pub fn read_local_apic(&self, offset: usize, below: impl FnOnce() -> u32) -> u32 {
        let offset = offset as u32;
        if self.owns_apic(offset) { self.read_apic(offset) } else { self.adjust_apic(offset, below()) }
    }

    /// Writes the register at `offset`. Returns `false` if it is not modelled here.
    pub fn write_local_apic(&mut self, offset: usize, value: u32) -> bool {
        let own = self.owns_apic(offset as u32);
        if own {
            self.write_apic(offset as u32, value);
        }
        own
    }
}

impl Deref for Hardware {
    type Target = dyn Processor;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Intel(processor) => processor,
            Self::Amd(processor) => processor,
        }
    }
}

impl DerefMut for Hardware {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Intel(processor) => processor,
            Self::Amd(processor) => processor,
        }
    }
}

#[cfg(test)]
mod tests;
