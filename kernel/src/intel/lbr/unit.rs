//! Last branch records that are off: detection and start.

use super::capabilities::LBR;
use super::stack::Entries;
use super::{Branch, LbrCapabilities, LbrConfig, LbrRefusal, LbrRunning, LbrSession};
use crate::cpuid::CpuIdReader;
use crate::lifecycle::{Absent, InUse, NotCurrent, NotStarted, StartError};
use crate::loss::Gap;
use crate::msr::{
    DebugCtl, DebugFlags, GeneralProtection, LbrDepth, LbrSelect, Msr, Register, RegisterAt, RegisterValue,
    RtitCtl, TypedMsr,
};
use core::marker::PhantomData;

/// The last branch records of one logical processor, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found, and so
/// do the values made from it.
#[derive(Debug)]
pub struct LbrUnit<M: Msr> {
    pub(super) msr: M,
    capabilities: LbrCapabilities,
    /// The configuration of the last start.
    config: LbrConfig,
    /// The reason why branches are missing between those that are recorded and the last stop.
    missing: Option<Gap>,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> LbrUnit<M> {
    /// Detects the last branch records: first by CPUID, then by checking that their register works.
    ///
    /// # Errors
    ///
    /// The records are absent. If their register raised #GP when its value was restored, they are on.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, Absent> {
        let capabilities = LbrCapabilities::detect(cpuid, &mut msr)?;
        let config = LbrConfig::new();
        Ok(Self { msr, capabilities, config, missing: None, of_this_processor: PhantomData })
    }

    /// Detects the records as [`LbrUnit::detect`] does, and takes them over if firmware, a boot loader or another
    /// kernel before this one has left them on: turns them off, and returns the register that showed this. If their
    /// owner is this driver, it reports that they were turned off ([`NotCurrent::Outdated`]). BTS, which excludes the
    /// records, is left alone: [`DsUnit::take_over`](crate::intel::ds::DsUnit::take_over).
    ///
    /// # Errors
    ///
    /// The records are absent, or they stay on: another owner below this kernel (a hypervisor) uses them.
    pub fn take_over(cpuid: impl CpuIdReader, msr: M) -> Result<(Self, Option<InUse>), Absent> {
        let mut unit = Self::detect(cpuid, msr)?;
        let register = unit.capabilities.enabling();
        let control = unit.msr.read_at(register)?;
        if control & LBR == 0 {
            return Ok((unit, None));
        }
        unit.pause()?;
        unit.freeze_no_more(unit.capabilities.freeze_on_pmi)?;
        let address = register.address();
        match unit.msr.read_at(register)? & LBR {
            0 => Ok((unit, Some(InUse::BranchRecorder { address, control }))),
            _ => Err(InUse::BranchRecorder { address, control }.into()),
        }
    }

    /// Returns the capabilities of the records.
    #[must_use]
    pub const fn capabilities(&self) -> &LbrCapabilities {
        &self.capabilities
    }

    /// Clears the records, and turns recording on. On NetBurst the records cannot be cleared: the oldest ones are from
    /// before the start until all were overwritten.
    ///
    /// # Errors
    ///
    /// The configuration or the processor refuses, or another owner records branches. The unit is returned, unless it
    /// cannot be stopped.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start(mut self, config: &LbrConfig) -> Result<LbrRunning<M>, NotStarted<LbrSession<M>>> {
        match config.check(&self.capabilities) {
            Ok(()) => {
                self.missing = None;
                LbrRunning::start(LbrSession::new(self, *config))
            }
            Err(refusal) => {
                Err(NotStarted::Off { unit: self, memory: (), error: StartError::Refused(refusal) })
            }
        }
    }

    /// Writes the last branches before the stop to `out`, the newest first, up to the length of `out`, and returns
    /// those written. Before the first start, the records are those of an earlier owner.
    ///
    /// # Errors
    ///
    /// The records were off when they were stopped, as described at [`LbrRunning::last`]; or an access raised #GP.
    pub fn last<'a>(&mut self, out: &'a mut [Branch]) -> Result<&'a [Branch], NotCurrent<'a, Branch>> {
        let count = self.read(out)?;
        NotCurrent::check(out, count, self.missing)
    }

    pub(super) fn read(&mut self, out: &mut [Branch]) -> Result<usize, GeneralProtection> {
        let (stack, format) = (self.capabilities.stack, self.capabilities.format);
        let depth = u32::from(stack.depth);
        let top = match stack.top {
            // The bits above the index are reserved.
            Some(register) => self.msr.read_at(register)? as u32 % depth,
            None => 0,
        };
        let mut count = 0;
        for n in 0..depth {
            let Some(place) = out.get_mut(count) else { break };
            // Older entries are below the top, or, in a stack without a top register, have higher numbers.
            let entry = match stack.top {
                Some(_) => (top + depth - n) % depth,
                None => n,
            };
            let (from, to, info) = self.entry(stack.entries, entry, format.has_info())?;
            let Some(branch) = format.branch(from, to, info) else { break };
            if self.config.keeps(&branch) {
                *place = branch;
                count += 1;
            }
        }
        Ok(count)
    }

    fn entry(
        &mut self,
        entries: Entries,
        n: u32,
        with_info: bool,
    ) -> Result<(u64, u64, u64), GeneralProtection> {
        let msr = &mut self.msr;
        match entries {
            Entries::One { first } => {
                let both = msr.read_at(first.plus(n))?;
                Ok((u64::from(both as u32), both >> 32, 0))
            }
            Entries::Two { from, to } => Ok((msr.read_at(from.plus(n))?, msr.read_at(to.plus(n))?, 0)),
            Entries::Three { from, to, info } => {
                let info = if with_info { msr.read_at(info.plus(n))? } else { 0 };
                Ok((msr.read_at(from.plus(n))?, msr.read_at(to.plus(n))?, info))
            }
        }
    }

    /// Notes the reason why branches are missing between those that are recorded and the stop.
    pub(super) fn stopped(self, missing: Option<Gap>) -> Self {
        Self { missing, ..self }
    }

    /// Turns recording on, and sets whether a PMI freezes the records.
    pub(super) fn turn_on(&mut self, freezes: bool) -> Result<(), GeneralProtection> {
        self.change(DebugCtl::AT, self.freeze_bit(freezes), 0)?;
        self.change(self.capabilities.enabling(), LBR, 0)
    }

    /// Clears the bit that lets a PMI freeze the records, if they were started with it.
    pub(super) fn freeze_no_more(&mut self, freezes: bool) -> Result<(), GeneralProtection> {
        self.change(DebugCtl::AT, 0, self.freeze_bit(freezes))
    }

    /// Returns whether another owner uses a unit that excludes these records. They must be off.
    pub(super) fn is_excluded(&mut self) -> Result<bool, GeneralProtection> {
        self.capabilities.is_excluded(&mut self.msr)
    }

    /// Turns recording off.
    pub(super) fn pause(&mut self) -> Result<(), GeneralProtection> {
        self.change(self.capabilities.enabling(), 0, LBR)
    }

    fn freeze_bit(&self, freezes: bool) -> u64 {
        match freezes {
            true => self.capabilities.control.bits(DebugFlags::FREEZE_LBRS_ON_PMI),
            false => 0,
        }
    }

    /// Checks that no other owner records branches, and that PT is off if it excludes these records.
    pub(super) fn claim(&mut self) -> Result<(), StartError<LbrRefusal>> {
        let DebugCtl(bits) = self.msr.read()?;
        if self.capabilities.control.flags(DebugCtl(bits)).intersects(DebugFlags::RECORDERS) {
            return Err(InUse::BranchRecorder { address: DebugCtl::ADDRESS, control: bits }.into());
        }
        if self.capabilities.is_architectural() {
            let register = self.capabilities.enabling();
            let control = self.msr.read_at(register)?;
            return match control & LBR {
                0 => Ok(()),
                _ => Err(InUse::BranchRecorder { address: register.address(), control }.into()),
            };
        }
        if self.capabilities.processor_trace {
            let ctl: RtitCtl = self.msr.read()?;
            if ctl.contains(RtitCtl::TRACE_EN) {
                return Err(InUse::ProcessorTrace { ctl }.into());
            }
        }
        Ok(())
    }

    /// Clears the records, writes the filter, and turns recording on.
    pub(super) fn begin(&mut self, config: &LbrConfig) -> Result<(), GeneralProtection> {
        self.config = *config;
        if self.capabilities.is_architectural() {
            // The write clears all records.
            let depth = LbrDepth(u64::from(self.capabilities.stack.depth));
            // SAFETY: registers that nothing else uses; no memory is written.
            unsafe { self.msr.write(depth) }?;
            // SAFETY: as above.
            unsafe { self.msr.write(config.control()) }?;
            return self.turn_on(config.freezes());
        }
        self.clear()?;
        if self.capabilities.stack.select {
            let select: LbrSelect = config.select(&self.capabilities);
            // SAFETY: as above.
            unsafe { self.msr.write(select) }?;
        }
        self.turn_on(config.freezes())
    }

    /// Returns whether the registers are as [`LbrUnit::begin`] left them, or a PMI froze the records.
    pub(super) fn is_as_left(&mut self, config: &LbrConfig) -> Result<bool, GeneralProtection> {
        let control = self.msr.read_at(self.capabilities.enabling())?;
        if self.capabilities.is_architectural() {
            return Ok(control == config.control().to_bits() | LBR);
        }
        // Before architectural performance monitoring version 4 a PMI clears LBR and leaves the freeze bit. A VM exit
        // clears both.
        let freeze = self.freeze_bit(config.freezes());
        let on = control & LBR != 0 || freeze != 0 && control & freeze != 0;
        let selects = self.capabilities.stack.select;
        Ok(on && (!selects || self.msr.read::<LbrSelect>()? == config.select(&self.capabilities)))
    }

    fn clear(&mut self) -> Result<(), GeneralProtection> {
        if !self.capabilities.stack.writable {
            return Ok(());
        }
        for n in 0..u32::from(self.capabilities.stack.depth) {
            let registers = match self.capabilities.stack.entries {
                Entries::One { first } => [Some(first), None, None],
                Entries::Two { from, to } => [Some(from), Some(to), None],
                Entries::Three { from, to, info } => [Some(from), Some(to), Some(info)],
            };
            for register in registers.into_iter().flatten() {
                // SAFETY: a record that nothing else uses; no memory is written.
                unsafe { self.msr.write_at(register.plus(n), 0) }?;
            }
        }
        Ok(())
    }

    fn change<R: RegisterValue>(
        &mut self,
        register: RegisterAt<R>,
        set: u64,
        clear: u64,
    ) -> Result<(), GeneralProtection> {
        if set | clear == 0 {
            return Ok(());
        }
        // SAFETY: branches go into registers of this unit; no memory is written.
        unsafe { self.msr.change_bits(register, set, clear) }.map(|_| ())
    }
}
