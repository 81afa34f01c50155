//! A recorder of branches that is off: detection and start.

use super::{BranchConfig, BranchRunning, BranchSession};
use crate::amd::AmdCapabilities;
use crate::cpuid::CpuIdReader;
use crate::lifecycle::{self, Absent, InUse, Missing, NotStarted, StartError};
use crate::msr::amd::{AmdLbrSelect, DbgExtnCfg, PerfCntrGlobalStatusClr, branch_from, branch_to};
use crate::msr::{DebugCtl, GeneralProtection, Msr, Register, RegisterAt, RegisterValue, TypedMsr};
use core::marker::PhantomData;

/// The hardware that records branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorder {
    /// LBR version 2.
    LbrV2 {
        /// The number of branches that the recorder keeps.
        depth: u8,
        /// True if a PMI can freeze the records.
        freezes: bool,
    },
    /// Branch sampling, which keeps sixteen branches.
    Sampling {
        /// The number of bits of a target that are written.
        linear_address_bits: u8,
    },
}

impl Recorder {
    /// Returns the number of branches that the recorder keeps.
    #[must_use]
    pub const fn depth(self) -> u8 {
        match self {
            Self::LbrV2 { depth, .. } => depth,
            Self::Sampling { .. } => 16,
        }
    }

    /// Finds the recorder by CPUID.
    fn find(cpuid: impl CpuIdReader) -> Result<Self, Missing> {
        let capabilities = AmdCapabilities::read(cpuid)?;
        Ok(match capabilities.lbr_v2 {
            0 if capabilities.branch_sampling && capabilities.family == 0x19 => {
                Self::Sampling { linear_address_bits: capabilities.linear_address_bits }
            }
            0 => return Err(Missing::BranchRecorder),
            depth => Self::LbrV2 { depth, freezes: capabilities.lbr_freeze },
        })
    }

    /// Returns the bit that turns the recorder on.
    pub(super) const fn enable(self) -> DbgExtnCfg {
        match self {
            Self::LbrV2 { .. } => DbgExtnCfg::LBRV2EN,
            Self::Sampling { .. } => DbgExtnCfg::BRSMEN,
        }
    }
}

/// The recorder of one logical processor, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found.
#[derive(Debug)]
pub struct BranchUnit<M: Msr> {
    pub(super) msr: M,
    pub(super) recorder: Recorder,
    of_this_processor: PhantomData<*const ()>,
}

/// The bits that turn a recorder on, whichever the processor has.
const RECORDERS: DbgExtnCfg = DbgExtnCfg::LBRV2EN.union(DbgExtnCfg::BRSMEN);
/// DebugCtl: a PMI freezes the last branches.
const FREEZE: u64 = 1 << 11;
/// PerfCntrGlobalStatus: the last branches are frozen.
const FROZEN: u64 = 1 << 58;
/// Marks the end of the entries that belong to the current task: this value is not an address.
pub(super) const POISON: u64 = !1;

impl<M: Msr> BranchUnit<M> {
    /// Detects the recorder: first by CPUID, then by checking that its registers work and that no other owner uses it.
    ///
    /// # Errors
    ///
    /// The recorder is absent, or another owner uses it.
    pub fn detect(cpuid: impl CpuIdReader, msr: M) -> Result<Self, Absent> {
        let recorder = Recorder::find(cpuid)?;
        let mut unit = Self { msr, recorder, of_this_processor: PhantomData };
        if let Some(in_use) = unit.in_use()? {
            return Err(in_use.into());
        }
        // SAFETY: this record is unused; no memory is written.
        unsafe { lifecycle::probe(&mut unit.msr, branch_from(0), |_| PATTERN, u64::MAX) }?;
        Ok(unit)
    }

    /// Detects the recorder as [`BranchUnit::detect`] does, and takes it over if firmware, a boot loader or another
    /// kernel before this one has left it on: turns it off, and returns the register that showed this. If the owner is
    /// this driver, its LBR version 2 reports that it was turned off
    /// ([`NotCurrent::Outdated`](crate::lifecycle::NotCurrent::Outdated)).
    ///
    /// # Errors
    ///
    /// The recorder is absent, or it stays on: another owner below this kernel (a hypervisor) uses it.
    pub fn take_over(cpuid: impl CpuIdReader, mut msr: M) -> Result<(Self, Option<InUse>), Absent> {
        Recorder::find(cpuid.clone())?;
        let config: DbgExtnCfg = msr.read()?;
        let on = config.intersection(RECORDERS);
        if on.is_empty() {
            return Ok((Self::detect(cpuid, msr)?, None));
        }
        // SAFETY: this only ends records, which are in registers.
        unsafe { msr.write(config.difference(RECORDERS)) }?;
        let left_on = InUse::BranchRecorder { address: DbgExtnCfg::ADDRESS, control: config.bits() };
        Ok((Self::detect(cpuid, msr)?, Some(left_on)))
    }

    /// Returns the other owner, if there is one.
    pub(super) fn in_use(&mut self) -> Result<Option<InUse>, GeneralProtection> {
        let config: DbgExtnCfg = self.msr.read()?;
        let in_use = InUse::BranchRecorder { address: DbgExtnCfg::ADDRESS, control: config.bits() };
        Ok(config.intersects(RECORDERS).then_some(in_use))
    }

    /// Returns the kind of recorder.
    #[must_use]
    pub const fn recorder(&self) -> Recorder {
        self.recorder
    }

    /// Clears the records, and turns the recorder on.
    ///
    /// # Errors
    ///
    /// The recorder does not support the configuration, or the processor refuses. The unit is returned, unless it
    /// cannot be stopped.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start(self, config: &BranchConfig) -> Result<BranchRunning<M>, NotStarted<BranchSession<M>>> {
        match config.check(self.recorder) {
            Ok(()) => BranchRunning::start(BranchSession::new(self, *config)),
            Err(refusal) => {
                Err(NotStarted::Off { unit: self, memory: (), error: StartError::Refused(refusal) })
            }
        }
    }

    /// Clears the bit that lets a PMI freeze the recorder, if it was started with it.
    pub(super) fn freeze_no_more(&mut self, freezes: bool) -> Result<(), GeneralProtection> {
        match freezes {
            true => self.change_debugctl(0, FREEZE),
            false => Ok(()),
        }
    }

    pub(super) fn begin(&mut self, config: &BranchConfig) -> Result<(), GeneralProtection> {
        if let Recorder::LbrV2 { depth, .. } = self.recorder {
            self.write(config.select())?;
            for n in 0..depth {
                self.write_at(branch_from(n), 0)?;
                self.write_at(branch_to(n), 0)?;
            }
            if config.freeze_on_pmi {
                self.change_debugctl(FREEZE, 0)?;
            }
        }
        self.resume(config.freeze_on_pmi)
    }

    /// Returns whether the registers are as [`BranchUnit::begin`] left them. Branch sampling ends by itself when it is
    /// full.
    pub(super) fn is_as_left(&mut self, config: &BranchConfig) -> Result<bool, GeneralProtection> {
        if let Recorder::Sampling { .. } = self.recorder {
            return Ok(true);
        }
        let on = self.msr.read::<DbgExtnCfg>()?.contains(self.recorder.enable());
        Ok(on && self.msr.read::<AmdLbrSelect>()? == config.select())
    }

    /// Pauses the recorder; returns the old value of its register.
    pub(super) fn pause(&mut self) -> Result<DbgExtnCfg, GeneralProtection> {
        let config: DbgExtnCfg = self.msr.read()?;
        self.write(config.difference(self.recorder.enable()) | self.ones())?;
        Ok(config)
    }

    /// Resumes the recorder; branch sampling restarts with empty records.
    pub(super) fn resume(&mut self, freezes: bool) -> Result<(), GeneralProtection> {
        if freezes {
            self.write(PerfCntrGlobalStatusClr(FROZEN))?;
        }
        match self.recorder {
            Recorder::LbrV2 { .. } => self.go_on(),
            Recorder::Sampling { .. } => self.write(self.recorder.enable() | self.ones()),
        }
    }

    /// Resumes the recorder and keeps its records.
    pub(super) fn go_on(&mut self) -> Result<(), GeneralProtection> {
        let config: DbgExtnCfg = self.msr.read()?;
        self.write(config | self.recorder.enable() | self.ones())
    }

    /// Returns the reserved bits that branch sampling needs set.
    const fn ones(&self) -> DbgExtnCfg {
        match self.recorder {
            Recorder::LbrV2 { .. } => DbgExtnCfg::empty(),
            Recorder::Sampling { .. } => DbgExtnCfg::ONES,
        }
    }

    fn change_debugctl(&mut self, set: u64, clear: u64) -> Result<(), GeneralProtection> {
        // SAFETY: this only controls the freeze of records that nothing else uses; no memory is written.
        unsafe { self.msr.change_bits(DebugCtl::AT, set, clear) }.map(|_| ())
    }

    fn write<R: Register>(&mut self, value: R) -> Result<(), GeneralProtection> {
        self.write_at(R::AT, value)
    }

    pub(super) fn write_at<R: RegisterValue>(
        &mut self,
        register: RegisterAt<R>,
        value: R,
    ) -> Result<(), GeneralProtection> {
        // SAFETY: registers of a recorder that nothing else uses: it writes to no memory.
        unsafe { self.msr.write_at(register, value) }
    }
}

/// An arbitrary address.
const PATTERN: u64 = 0x5a_5a5a;
