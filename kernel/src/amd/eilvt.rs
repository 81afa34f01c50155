//! The extended entries of AMD's local vector table (LVT), which deliver the interrupt of IBS.
//!
//! Source: APM vol. 2, Advanced Programmable Interrupt Controller (APIC), "Extended Interrupt Local Vector Table"; for
//! x2APIC "x2APIC Register Address Space".

use crate::lapic::{X2Apic, XApic};
use crate::msr::{GeneralProtection, Msr, RegisterAt, TypedMsr};
use core::fmt;

/// The extended local vector table of one logical processor.
///
/// # Safety
///
/// As for [`LocalApic`](crate::lapic::LocalApic): the entries must be those of the logical processor that the driver
/// runs on, and nothing else may be written.
pub unsafe trait ExtendedLvt {
    /// Returns the number of entries: bits 23:16 of the Extended APIC Feature Register.
    ///
    /// # Errors
    ///
    /// The register raised #GP.
    fn count(&mut self) -> Result<u8, GeneralProtection>;

    /// Reads entry `n`, below [`ExtendedLvt::count`].
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
    /// The entry must exist, because other registers follow the last one. The entry must be masked, or deliver an
    /// interrupt that the kernel handles as an interrupt: an exception's vector would run a handler that expects an
    /// exception's frame.
    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection>;
}

/// An entry: bits 7:0 vector, 10:8 message type, 16 mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LvtEntry(pub u32);

impl LvtEntry {
    /// An NMI, unmasked.
    pub const NMI: Self = Self(0b100 << 8);
    /// The value after reset: nothing is delivered.
    pub const MASKED: Self = Self(1 << 16);

    /// Returns whether nothing is delivered.
    #[must_use]
    pub const fn is_masked(self) -> bool {
        self.0 & Self::MASKED.0 != 0
    }

    /// Returns the routing, without the delivery status, which the processor sets.
    const fn route(self) -> u32 {
        self.0 & 0x1_07ff
    }
}

/// Makes entry `n` deliver an NMI.
///
/// # Errors
///
/// The entry does not exist, or another owner uses it for another purpose.
pub(super) fn route(apic: &mut impl ExtendedLvt, n: u8) -> Result<(), EilvtError> {
    let count = apic.count()?;
    if n >= count {
        return Err(EilvtError::NoEntry { n, count });
    }
    let entry = apic.entry(n)?;
    match entry.route() == LvtEntry::NMI.route() {
        true => Ok(()),
        // Some firmware leaves the entries 0 instead of masked: no owner uses a vector below 16.
        false if entry.is_masked() || entry.0 == 0 => {
            // SAFETY: there are more entries than `n`, and the kernel handles an NMI as an interrupt.
            Ok(unsafe { apic.set_entry(n, LvtEntry::NMI) }?)
        }
        false => Err(EilvtError::InUse { n, entry }),
    }
}

/// Returns the first free entry from 1 on; entry 0 belongs to the machine check thresholds.
///
/// # Errors
///
/// No entry is free, or an access raised #GP.
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

/// The reason why an interrupt is not routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EilvtError {
    /// The local APIC does not have this many entries.
    NoEntry {
        /// The entry that the unit uses.
        n: u8,
        /// The number of entries.
        count: u8,
    },
    /// Another owner uses the entry for another purpose.
    InUse {
        /// The entry's number.
        n: u8,
        /// The entry's value.
        entry: LvtEntry,
    },
    /// All entries are used.
    NoneFree {
        /// The number of entries.
        count: u8,
    },
    /// IBS_CTL names no entry, and on this family only firmware can change that, or the caller gave no access to the
    /// northbridges.
    NotAssigned {
        /// The value of IBS_CTL.
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

// SAFETY: the page belongs to the processor that accesses it, and the offsets are the feature register and the extended
// LVT.
unsafe impl ExtendedLvt for XApic {
    fn count(&mut self) -> Result<u8, GeneralProtection> {
        // SAFETY: an aligned register of the page that the caller of `new` promised.
        Ok((unsafe { self.register_at(0x400).read_volatile() } >> 16) as u8)
    }

    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection> {
        // SAFETY: an aligned register of the page that the caller of `new` promised.
        Ok(LvtEntry(unsafe { self.register_at(0x500 + 0x10 * usize::from(n)).read_volatile() }))
    }

    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection> {
        // SAFETY: an aligned register of the page that the caller of `new` promised.
        unsafe { self.register_at(0x500 + 0x10 * usize::from(n)).write_volatile(entry.0) };
        Ok(())
    }
}

/// The extended APIC feature register in x2APIC mode. Source: APM vol. 2, Advanced Programmable Interrupt Controller
/// (APIC), "x2APIC Register Address Space".
const FEATURE: RegisterAt = RegisterAt::new(0x840);
/// The first entry of the extended LVT in x2APIC mode. Source: as [`FEATURE`].
const ENTRIES: RegisterAt = RegisterAt::new(0x850);

// SAFETY: the MSRs are the feature register and the extended LVT of the processor whose MSRs these are.
unsafe impl<M: Msr> ExtendedLvt for X2Apic<M> {
    fn count(&mut self) -> Result<u8, GeneralProtection> {
        Ok((self.msr.read_at(FEATURE)? >> 16) as u8)
    }

    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection> {
        Ok(LvtEntry(self.msr.read_at(ENTRIES.plus(n.into()))? as u32))
    }

    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises a legal routing; the processor writes to no memory but the handler's stack.
        unsafe { self.msr.write_at(ENTRIES.plus(n.into()), u64::from(entry.0)) }
    }
}

// SAFETY: the reference forwards every call to the implementation that it refers to.
unsafe impl<A: ExtendedLvt> ExtendedLvt for &mut A {
    fn count(&mut self) -> Result<u8, GeneralProtection> {
        (**self).count()
    }

    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection> {
        (**self).entry(n)
    }

    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises the same.
        unsafe { (**self).set_entry(n, entry) }
    }
}
