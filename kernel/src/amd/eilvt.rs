//! The extended entries of the local vector table.
//!
//! Source: APM vol. 2, Advanced Programmable Interrupt Controller (APIC), "Extended Interrupt Local Vector Table"; for
//! x2APIC "x2APIC Register Address Space".

use crate::lapic::{X2Apic, XApic};
use crate::msr::{GeneralProtection, Msr};
use core::fmt;

/// The extended local vector table of one logical processor.
///
/// # Safety
///
/// As [`LocalApic`](crate::lapic::LocalApic): the entries are those of the logical processor that the driver runs on,
/// and nothing else is written.
pub unsafe trait ExtendedLvt {
    /// How many entries there are: bits 23:16 of the Extended APIC Feature Register.
    ///
    /// # Errors
    ///
    /// The register raised #GP.
    fn count(&mut self) -> Result<u8, GeneralProtection>;

    /// Entry `n`, below [`ExtendedLvt::count`].
    ///
    /// # Errors
    ///
    /// The register raised #GP.
    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection>;

    /// Writes entry `n`, below [`ExtendedLvt::count`].
    ///
    /// # Errors
    ///
    /// The register raised #GP.
    ///
    /// # Safety
    ///
    /// There is such an entry: behind the last one are other registers. What it delivers is masked, or is an interrupt
    /// that the kernel takes as one: an exception's vector would run a handler that expects an exception's frame.
    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection>;
}

/// An entry: bits 7:0 vector, 10:8 message type, 16 mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LvtEntry(pub u32);

impl LvtEntry {
    /// An NMI, unmasked.
    pub const NMI: Self = Self(0b100 << 8);
    /// As after reset: nothing is delivered.
    pub const MASKED: Self = Self(1 << 16);

    /// Whether nothing is delivered.
    #[must_use]
    pub const fn is_masked(self) -> bool {
        self.0 & Self::MASKED.0 != 0
    }

    /// What it routes, without the delivery status, which is the processor's.
    const fn route(self) -> u32 {
        self.0 & 0x1_07ff
    }
}

/// Makes entry `n` an NMI.
///
/// # Errors
///
/// There is no such entry, or somebody uses it for something else.
pub(super) fn route(apic: &mut impl ExtendedLvt, n: u8) -> Result<(), EilvtError> {
    let count = apic.count()?;
    if n >= count {
        return Err(EilvtError::NoEntry { n, count });
    }
    let entry = apic.entry(n)?;
    match entry.route() == LvtEntry::NMI.route() {
        true => Ok(()),
        // Some firmware leaves the entries 0 instead of masked: a vector below 16 is nobody's.
        false if entry.is_masked() || entry.0 == 0 => {
            // SAFETY: there are more entries than `n`, and the kernel takes an NMI as one.
            Ok(unsafe { apic.set_entry(n, LvtEntry::NMI) }?)
        }
        false => Err(EilvtError::InUse { n, entry }),
    }
}

/// The first entry from 1 on that nobody uses; 0 is that of the machine check thresholds.
///
/// # Errors
///
/// There is none, or an access raised #GP.
pub(super) fn free(apic: &mut impl ExtendedLvt) -> Result<u8, EilvtError> {
    let count = apic.count()?;
    for n in 1..count {
        let entry = apic.entry(n)?;
        if entry.is_masked() || entry.0 == 0 {
            return Ok(n);
        }
    }
    Err(EilvtError::NoneFree { count })
}

/// Why no interrupt is routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EilvtError {
    /// The local APIC has not so many entries.
    NoEntry {
        /// The one that the unit uses.
        n: u8,
        /// How many there are.
        count: u8,
    },
    /// Somebody uses the entry for something else.
    InUse {
        /// Which one.
        n: u8,
        /// What is in it.
        entry: LvtEntry,
    },
    /// All are used.
    NoneFree {
        /// How many there are.
        count: u8,
    },
    /// IBS_CTL names no entry, and only firmware can change that on this family, or nobody may reach the northbridges.
    NotAssigned {
        /// IBS_CTL.
        ibs_ctl: u64,
    },
    /// An access raised #GP.
    Fault(GeneralProtection),
}

impl From<GeneralProtection> for EilvtError {
    fn from(fault: GeneralProtection) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for EilvtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEntry { n, count } => write!(f, "extended LVT entry {n} is not there: there are {count}"),
            Self::InUse { n, entry } => {
                write!(f, "somebody else uses extended LVT entry {n}: it is {:#x}", entry.0)
            }
            Self::NoneFree { count } => write!(f, "all {count} extended LVT entries are used"),
            Self::NotAssigned { ibs_ctl } => {
                write!(f, "no extended LVT entry is assigned to IBS: IBS_CTL is {ibs_ctl:#x}")
            }
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for EilvtError {}

// SAFETY: the page is that of the processor which reads it, and the offsets are the feature register and the extended
// LVT.
unsafe impl ExtendedLvt for XApic {
    fn count(&mut self) -> Result<u8, GeneralProtection> {
        // SAFETY: an aligned register of the page that `new` was promised.
        Ok((unsafe { self.register_at(0x400).read_volatile() } >> 16) as u8)
    }

    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection> {
        // SAFETY: an aligned register of the page that `new` was promised.
        Ok(LvtEntry(unsafe { self.register_at(0x500 + 0x10 * usize::from(n)).read_volatile() }))
    }

    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection> {
        // SAFETY: an aligned register of the page that `new` was promised.
        unsafe { self.register_at(0x500 + 0x10 * usize::from(n)).write_volatile(entry.0) };
        Ok(())
    }
}

// SAFETY: the MSRs are the feature register and the extended LVT of the processor whose MSRs these are.
unsafe impl<M: Msr> ExtendedLvt for X2Apic<M> {
    fn count(&mut self) -> Result<u8, GeneralProtection> {
        Ok((self.msr.rdmsr(0x840)? >> 16) as u8)
    }

    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection> {
        Ok(LvtEntry(self.msr.rdmsr(0x850 + u32::from(n))? as u32))
    }

    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection> {
        // SAFETY: an interrupt's routing, as the caller promises; the processor writes to no memory but the handler's stack.
        unsafe { self.msr.wrmsr(0x850 + u32::from(n), u64::from(entry.0)) }
    }
}

// SAFETY: every call goes to the one implementation behind the reference.
unsafe impl<A: ExtendedLvt> ExtendedLvt for &mut A {
    fn count(&mut self) -> Result<u8, GeneralProtection> {
        (**self).count()
    }

    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection> {
        (**self).entry(n)
    }

    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection> {
        // SAFETY: as the caller promises.
        unsafe { (**self).set_entry(n, entry) }
    }
}
