//! Unlocks Instruction Based Sampling on the first Zen processors, whose firmware may have locked it.
//!
//! Source: the driver of the AMD Research Instruction Based Sampling Toolkit; no manual names these bits.

use crate::amd::AmdCapabilities;
use crate::cpuid::CpuIdReader;
use crate::lifecycle::Missing;
use crate::msr::{GeneralProtection, Msr, RegisterAt, TypedMsr};
use core::fmt;
use pugmark_decoder_core::ibs::IbsErrata;

/// CPUID_ExtFeatures: bits that CPUID reports. Scope: logical processor.
const EXT_FEATURES: (RegisterAt, u64) = (RegisterAt::new(0xc001_1005), 1 << 42);
/// A register without a name. Scope: core.
const UNLOCK: (RegisterAt, u64) = (RegisterAt::new(0xc001_1029), 1 << 19);
/// LS_CFG. Scope: core.
const LS_CFG: (RegisterAt, u64) = (RegisterAt::new(0xc001_1020), 1 << 54);
/// CSTATE_CONFIG: the core may enter CC6. Scope: core.
const CC6: (RegisterAt, u64) = (RegisterAt::new(0xc001_0296), 0x40_4040);

/// Unlocks the units of family 17h models 00h to 1Fh, and makes CPUID announce them. Returns whether that was needed.
/// Call it on each logical processor, before [`IbsUnit::detect`](super::IbsUnit::detect).
///
/// # Safety
///
/// The core's other thread must be off: the toolkit's authors have seen cores hang otherwise.
///
/// # Errors
///
/// The processor is another one, or an access raised #GP.
pub unsafe fn unlock(cpuid: impl CpuIdReader, msr: &mut impl Msr) -> Result<bool, UnlockError> {
    let capabilities = AmdCapabilities::read(cpuid)?;
    if !IbsErrata::of(capabilities.family, capabilities.model).has(IbsErrata::LOCKED) {
        return Err(UnlockError::NotLocked);
    }
    if capabilities.ibs.is_some() {
        return Ok(false);
    }
    change(msr, UNLOCK.0, UNLOCK.1, 0)?;
    change(msr, EXT_FEATURES.0, EXT_FEATURES.1, 0)?;
    Ok(true)
}

/// A core kept out of deep sleep while it samples, which unlocked units need. Both threads must sample only between
/// [`AwakeCore::hold`] and [`AwakeCore::release`].
#[derive(Debug)]
pub struct AwakeCore<M: Msr> {
    msr: M,
    /// The bits of LS_CFG and CSTATE_CONFIG that were changed.
    set: u64,
    cleared: u64,
}

impl<M: Msr> AwakeCore<M> {
    /// Keeps the core awake.
    ///
    /// # Safety
    ///
    /// The processor must be of family 17h, models 00h to 1Fh, and nothing else may change these registers of the core
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// An access raised #GP; registers that were changed before it are restored, unless that raises #GP too.
    pub unsafe fn hold(mut msr: M) -> Result<Self, GeneralProtection> {
        let set = LS_CFG.1 & !change(&mut msr, LS_CFG.0, LS_CFG.1, 0)?;
        match change(&mut msr, CC6.0, 0, CC6.1) {
            Ok(old) => Ok(Self { msr, set, cleared: CC6.1 & old }),
            Err(fault) => {
                // The first fault is the one to report.
                let _ = change(&mut msr, LS_CFG.0, 0, set);
                Err(fault)
            }
        }
    }

    /// Lets the core sleep as before.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the caller can try again.
    pub fn release(mut self) -> Result<(), (Self, GeneralProtection)> {
        let first = change(&mut self.msr, CC6.0, self.cleared, 0);
        match first.and_then(|_| change(&mut self.msr, LS_CFG.0, 0, self.set)) {
            Ok(_) => Ok(()),
            Err(fault) => Err((self, fault)),
        }
    }
}

/// Sets and clears bits; returns the old value.
fn change(msr: &mut impl Msr, register: RegisterAt, set: u64, clear: u64) -> Result<u64, GeneralProtection> {
    // SAFETY: the callers promise that this is legal; no memory is written.
    unsafe { msr.change_bits(register, set, clear) }
}

/// The reason why nothing was unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlockError {
    /// Another vendor's processor.
    Missing(Missing),
    /// The processor is not one whose firmware locks the units.
    NotLocked,
    /// An access raised #GP.
    Fault(GeneralProtection),
}

impl From<Missing> for UnlockError {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl From<GeneralProtection> for UnlockError {
    fn from(fault: GeneralProtection) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for UnlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(f),
            Self::NotLocked => f.write_str("only on family 17h, models 00h to 1Fh, firmware locks the units"),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for UnlockError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::fake::{self, Cpu, Machine};

    const LOCKED: Cpu = Cpu { features: 1 << 23, ibs: 0, ..fake::ZEN_1 };

    #[test]
    fn only_the_first_zens_are_unlocked_and_only_where_they_are_locked() {
        let both = vec![(0xc001_1029, 1 << 19 | 5), (0xc001_1005, 1 << 42 | 5)];
        let table = [
            (LOCKED, Ok(true), both.clone()),
            (Cpu { model: 0x1f, ..LOCKED }, Ok(true), both),
            (fake::ZEN_1, Ok(false), vec![]),
            (Cpu { model: 0x20, ..LOCKED }, Err(UnlockError::NotLocked), vec![]),
            (Cpu { family: 0x19, ..LOCKED }, Err(UnlockError::NotLocked), vec![]),
        ];
        for (cpu, verdict, writes) in table {
            let mut machine = Machine::new(cpu);
            machine.set(0xc001_1005, 5);
            machine.set(0xc001_1029, 5);
            // SAFETY: the registers represent no hardware.
            assert_eq!(unsafe { unlock(machine.clone().cpuid(), &mut machine) }, verdict, "{cpu:x?}");
            assert_eq!(machine.writes(), writes, "{cpu:x?}");
        }
    }

    #[test]
    fn a_core_sleeps_afterwards_as_it_did_before() {
        for (ls_cfg, cc6) in [(0, 0x40_4040), (1 << 54, 0x40_4040), (7, 0x00_4041), (0, 0)] {
            for access in 0..9 {
                let machine = Machine::new(fake::ZEN_1);
                let registers = || (machine.get(0xc001_1020), machine.get(0xc001_0296));
                machine.set(0xc001_1020, ls_cfg);
                machine.set(0xc001_0296, cc6);
                machine.fault_in(access);
                // SAFETY: the registers represent no hardware.
                let held = unsafe { AwakeCore::hold(machine.clone()) };
                assert_eq!(held.is_err(), access < 4);
                if let Ok(held) = held {
                    assert_eq!(registers(), (ls_cfg | 1 << 54, cc6 & !0x40_4040));
                    if let Err((held, _)) = held.release() {
                        held.release().map_err(|(_, fault)| fault).unwrap();
                    }
                }
                assert_eq!(registers(), (ls_cfg, cc6), "access {access}");
            }
        }
    }
}
