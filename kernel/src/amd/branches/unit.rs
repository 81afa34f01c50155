//! A recorder that is off, and the way to turn it on.

use super::{BranchConfig, BranchRunning, BranchSession};
use crate::amd::AmdCapabilities;
use crate::cpuid::CpuIdReader;
use crate::lifecycle::{self, Absent, InUse, Missing, NotStarted, StartError};
use crate::msr::amd::{DbgExtnCfg, GlobalStatusClr, branch_from, branch_to};
use crate::msr::{DebugCtl, GeneralProtection, Msr, Register};
use core::marker::PhantomData;

/// What records branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorder {
    /// LBR version 2.
    LbrV2 {
        /// How many branches it keeps.
        depth: u8,
        /// A PMI can freeze it.
        freezes: bool,
    },
    /// Branch sampling: sixteen branches.
    Sampling {
        /// How many bits of a target are written.
        linear_address_bits: u8,
    },
}

impl Recorder {
    /// How many branches it keeps.
    #[must_use]
    pub const fn depth(self) -> u8 {
        match self {
            Self::LbrV2 { depth, .. } => depth,
            Self::Sampling { .. } => 16,
        }
    }

    /// The bit that turns it on.
    pub(super) const fn enable(self) -> DbgExtnCfg {
        match self {
            Self::LbrV2 { .. } => DbgExtnCfg::LBRV2EN,
            Self::Sampling { .. } => DbgExtnCfg::BRSMEN,
        }
    }
}

/// The recorder of one logical processor, off.
///
/// It cannot be sent to another thread of execution: it stands for the processor that it was found on.
#[derive(Debug)]
pub struct BranchUnit<M: Msr> {
    pub(super) msr: M,
    pub(super) recorder: Recorder,
    of_this_processor: PhantomData<*const ()>,
}

/// DebugCtl: a PMI freezes the last branches.
const FREEZE: u64 = 1 << 11;
/// PerfCntrGlobalStatus: the last branches are frozen.
const FROZEN: u64 = 1 << 58;
/// What marks where the entries end that belong to the one who reads them: no address.
pub(super) const POISON: u64 = !1;

impl<M: Msr> BranchUnit<M> {
    /// Finds it: CPUID first, then whether its registers hold what is written, and whether it is free.
    ///
    /// # Errors
    ///
    /// It is not there, or somebody uses it.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, Absent> {
        let capabilities = AmdCapabilities::read(cpuid)?;
        let recorder = match capabilities.lbr_v2 {
            0 if capabilities.branch_sampling && capabilities.family == 0x19 => {
                Recorder::Sampling { linear_address_bits: capabilities.linear_address_bits }
            }
            0 => return Err(Missing::BranchRecorder.into()),
            depth => Recorder::LbrV2 { depth, freezes: capabilities.lbr_freeze },
        };
        let config: DbgExtnCfg = msr.read()?;
        if config.intersects(DbgExtnCfg::LBRV2EN | DbgExtnCfg::BRSMEN) {
            return Err(InUse::BranchRecorder { address: DbgExtnCfg::ADDRESS, control: config.bits() }.into());
        }
        // SAFETY: a record that nobody uses; no memory is written.
        unsafe { lifecycle::probe(&mut msr, branch_from(0), |_| PATTERN, u64::MAX) }?;
        Ok(Self { msr, recorder, of_this_processor: PhantomData })
    }

    /// What it is.
    #[must_use]
    pub const fn recorder(&self) -> Recorder {
        self.recorder
    }

    /// Clears the records, and turns it on.
    ///
    /// # Errors
    ///
    /// It cannot record so, or the processor says no. The unit comes back, unless it cannot be stopped any more.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start(self, config: &BranchConfig) -> Result<BranchRunning<M>, NotStarted<BranchSession<M>>> {
        match config.check(self.recorder) {
            Ok(()) => BranchRunning::start(BranchSession::new(self, *config)),
            Err(refusal) => {
                Err(NotStarted::Off { unit: self, memory: (), error: StartError::Refused(refusal) })
            }
        }
    }

    /// Clears what lets a PMI freeze it, if it was started so.
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
                self.wrmsr(branch_from(n), 0)?;
                self.wrmsr(branch_to(n), 0)?;
            }
            if config.freeze_on_pmi {
                self.change_debugctl(FREEZE, 0)?;
            }
        }
        self.resume(config.freeze_on_pmi)
    }

    /// Stops it for a while; what it was set to.
    pub(super) fn pause(&mut self) -> Result<DbgExtnCfg, GeneralProtection> {
        let config: DbgExtnCfg = self.msr.read()?;
        self.write(config.difference(self.recorder.enable()) | self.ones())?;
        Ok(config)
    }

    /// Lets it go on; branch sampling begins anew.
    pub(super) fn resume(&mut self, freezes: bool) -> Result<(), GeneralProtection> {
        if freezes {
            self.write(GlobalStatusClr(FROZEN))?;
        }
        match self.recorder {
            Recorder::LbrV2 { .. } => self.go_on(),
            Recorder::Sampling { .. } => self.write(self.recorder.enable() | self.ones()),
        }
    }

    /// Lets it go on with what it has.
    pub(super) fn go_on(&mut self) -> Result<(), GeneralProtection> {
        let config: DbgExtnCfg = self.msr.read()?;
        self.write(config | self.recorder.enable() | self.ones())
    }

    /// Bits that branch sampling wants set.
    const fn ones(&self) -> DbgExtnCfg {
        match self.recorder {
            Recorder::LbrV2 { .. } => DbgExtnCfg::empty(),
            Recorder::Sampling { .. } => DbgExtnCfg::ONES,
        }
    }

    fn change_debugctl(&mut self, set: u64, clear: u64) -> Result<(), GeneralProtection> {
        // SAFETY: whether a PMI freezes records that nobody else uses: it writes to no memory.
        unsafe { self.msr.change(|DebugCtl(bits)| DebugCtl(bits & !clear | set)) }
    }

    pub(super) fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: registers of a recorder that nobody else uses: it writes to no memory.
        unsafe { self.msr.wrmsr(address, value) }
    }

    fn write<R: crate::msr::Register>(&mut self, register: R) -> Result<(), GeneralProtection> {
        // SAFETY: as above.
        unsafe { self.msr.write(register) }
    }
}

/// An address.
const PATTERN: u64 = 0x5a_5a5a;
