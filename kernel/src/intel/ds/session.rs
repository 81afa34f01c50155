//! A unit with the area it records into: the steps that start, PMI handler and stop are made of.

use super::config::CheckedDs;
use super::progress::{DsState, Progress};
use super::unit::DsUnit;
use super::{BufferMode, DsArea, DsRefusal, DsStopped, Half, LinearMemory};
use crate::drain::Sink;
use crate::intel::pebs::Program;
use crate::lifecycle::{Halted, NotBacked, Recording, Serve, StartError};
use crate::loss::Loss;
use crate::msr::{
    DebugCtl, DebugFlags, DsAreaBase, GeneralProtection, GlobalStatus, GlobalStatusReset, Msr, Register,
};
use crate::pmi::{Abandoned, Requests};
use core::sync::atomic::{Ordering, fence};

/// The debug store with the area that it records into.
#[derive(Debug)]
pub struct DsSession<M: Msr, L: LinearMemory> {
    unit: DsUnit<M>,
    area: DsArea<L>,
    /// What is set while branches are recorded, if they are to be.
    control: Option<DebugFlags>,
    /// The same as bits of the register, and all bits there that are this driver's.
    bits: (u64, u64),
    /// The counters that sample, if some are to.
    program: Option<Program>,
    bts: Progress,
    pebs: Progress,
    /// Branches are recorded.
    branches: bool,
    /// IA32_DS_AREA names the area.
    named: bool,
}

impl<M: Msr, L: LinearMemory> DsSession<M, L> {
    pub(super) fn new(unit: DsUnit<M>, area: DsArea<L>, recording: CheckedDs) -> Self {
        let CheckedDs { control, program } = recording;
        let register = unit.capabilities().control;
        let store = DebugFlags::TR
            | DebugFlags::BTS
            | DebugFlags::BTINT
            | DebugFlags::BTS_OFF_OS
            | DebugFlags::BTS_OFF_USR;
        let bits = (control.map_or(0, |control| register.bits(control)), register.bits(store));
        let (bts, pebs) = (Progress::new(), Progress::new());
        Self { unit, area, control, bits, program, bts, pebs, branches: false, named: false }
    }

    pub(super) const fn loss(&self, half: Half) -> &Loss {
        match half {
            Half::Bts => self.bts.loss(),
            Half::Pebs => self.pebs.loss(),
        }
    }

    pub(super) fn state(&self, half: Half) -> Option<DsState> {
        match half {
            Half::Bts if self.control.is_some() => Some(self.bts.state()),
            Half::Pebs if self.program.is_some() => Some(self.pebs.state()),
            _ => None,
        }
    }

    /// Its bits in IA32_PERF_GLOBAL_STATUS, on processors that have the register.
    fn status_bits(&self) -> GlobalStatus {
        let counters = self.program.as_ref().map_or(GlobalStatus::empty(), Program::status);
        match self.unit.capabilities().global_status {
            true => GlobalStatus::OVF_BUF.union(counters),
            false => GlobalStatus::empty(),
        }
    }

    /// The control register holds what lets branches be recorded.
    fn check_backed(&mut self) -> Result<(), StartError<DsRefusal>> {
        if !self.branches {
            return Ok(());
        }
        let (written, mine) = self.bits;
        let DebugCtl(read) = self.unit.msr.read()?;
        let read = read & mine;
        match read == written {
            true => Ok(()),
            false => {
                let address = DebugCtl::ADDRESS;
                Err(StartError::NotBacked(NotBacked { address, written, read }))
            }
        }
    }

    /// Whether an index is at its threshold, and somebody has to look. Also while the processor records.
    pub(super) fn is_due(&self) -> bool {
        let due = |half: Half, progress: &Progress| {
            self.state(half).is_some() && self.area.half(half).is_some_and(|buffer| progress.is_due(buffer))
        };
        due(Half::Bts, &self.bts) || due(Half::Pebs, &self.pebs)
    }

    /// Looks how far the processor came.
    pub(super) fn collect(&mut self, _: &Halted) {
        if let Some(buffer) = self.area.half(Half::Bts) {
            self.bts.collect(buffer);
        }
        if let Some(buffer) = self.area.half(Half::Pebs) {
            self.pebs.collect(buffer);
        }
    }

    /// Hands what is there to the sinks, as far as they take it.
    pub(super) fn deliver(
        &mut self,
        branches: &mut (impl Sink + ?Sized),
        samples: &mut (impl Sink + ?Sized),
        _: &Halted,
    ) {
        if let (Some(buffer), Some(_)) = (self.area.half_mut(Half::Bts), self.control) {
            self.bts.deliver(buffer, branches);
        }
        if let (Some(buffer), Some(_)) = (self.area.half_mut(Half::Pebs), &self.program) {
            self.pebs.deliver(buffer, samples);
        }
    }

    /// Goes on, each half if there is room.
    pub(super) fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        // The management area is written before the processor may read it.
        fence(Ordering::SeqCst);
        if let (Some(program), Some(buffer)) = (&mut self.program, self.area.half(Half::Pebs))
            && self.pebs.may_go_on(buffer)
        {
            self.pebs.begin();
            // SAFETY: records go where IA32_DS_AREA and the management area lead: memory of this session, until the
            // counters are stopped.
            unsafe { program.go_on(&mut self.unit.msr, self.pebs.lost_samples()) }?;
        }
        if let (Some(_), Some(buffer)) = (self.control, self.area.half(Half::Bts))
            && !self.branches
            && self.bts.may_go_on(buffer)
        {
            self.record_branches()?;
        }
        Ok(())
    }

    /// Stays off until [`DsSession::wake`].
    pub(super) fn suspend(&mut self) {
        self.bts.suspend();
        self.pebs.suspend();
    }

    /// Whether [`DsSession::go_on`] may go on again.
    pub(super) fn wake(&mut self) {
        self.bts.wake();
        self.pebs.wake();
    }

    /// Whether some half asks for PMIs.
    fn interrupts(&self) -> bool {
        let branches = self.control.is_some() && self.area.mode(Half::Bts) != Some(BufferMode::Circular);
        branches || self.program.is_some()
    }

    fn record_branches(&mut self) -> Result<(), GeneralProtection> {
        let (on, mine) = self.bits;
        // While it was off others may have begun.
        let bits = match self.unit.claim_branches() {
            Ok(bits) => bits,
            Err(StartError::Fault(fault)) => return Err(fault),
            Err(_) => {
                self.bts.exclude();
                return Ok(());
            }
        };
        // SAFETY: records go where IA32_DS_AREA and the management area lead: memory of this session, until it clears
        // TR.
        unsafe { self.unit.msr.write(DebugCtl(bits & !mine | on)) }?;
        self.branches = true;
        self.bts.begin();
        Ok(())
    }

    fn stop_branches(&mut self) -> Result<(), GeneralProtection> {
        if self.branches {
            let (_, mine) = self.bits;
            // SAFETY: it only ends writes to memory.
            unsafe { self.unit.msr.change(|DebugCtl(bits)| DebugCtl(bits & !mine)) }?;
            self.branches = false;
        }
        Ok(())
    }
}

impl<M: Msr, L: LinearMemory> Recording for DsSession<M, L> {
    type Unit = DsUnit<M>;
    type Memory = DsArea<L>;
    type Stopped = DsStopped<M, L>;
    type Refusal = DsRefusal;

    const WRITES_MEMORY: bool = true;

    /// Starts with empty buffers: the management area, the counters, IA32_DS_AREA, then what lets records be written.
    fn begin(&mut self) -> Result<(), StartError<DsRefusal>> {
        if self.control.is_some() {
            self.unit.claim_branches()?;
        }
        self.unit.claim_area()?;
        if let Some(program) = &self.program {
            self.unit.claim_counters(program)?;
        }
        if self.interrupts() {
            self.unit.require_apic()?;
            if !self.status_bits().is_empty() {
                // One from an earlier recording would be taken for this one's.
                // SAFETY: clears bits of what is off; no memory is written.
                unsafe { self.unit.msr.write(GlobalStatusReset(self.status_bits())) }?;
            }
        }
        match &mut self.program {
            Some(program) => {
                self.area.reset(program.resets());
                program.prepare(&mut self.unit.msr)?;
            }
            None => self.area.reset(core::iter::empty()),
        }
        // SAFETY: the management area that this session owns; its fields lead to buffers that it owns too, and
        // nothing is recorded yet.
        unsafe { self.unit.msr.write(DsAreaBase(self.area.address())) }?;
        self.named = true;
        let halted = Halted::halt(self)?;
        self.go_on(halted)?;
        self.check_backed()
    }

    /// Clears TR and what goes with it, and stops the counters: no record is written any more. What can be stopped is.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        let branches = self.stop_branches();
        let samples = match &mut self.program {
            Some(program) => program.stop(&mut self.unit.msr),
            None => Ok(()),
        };
        // Another processor that sees what we publish from here on sees the records too.
        fence(Ordering::SeqCst);
        branches.and(samples)
    }

    fn finish(&mut self, halted: &Halted) -> Result<(), GeneralProtection> {
        self.collect(halted);
        Ok(())
    }

    /// Makes IA32_DS_AREA name nothing, and gives the counters back.
    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        if self.named {
            // SAFETY: nothing is recorded, and whoever records next sets an area first.
            unsafe { self.unit.msr.write(DsAreaBase(0)) }?;
            self.named = false;
        }
        match &mut self.program {
            Some(program) => program.put_back(&mut self.unit.msr),
            None => Ok(()),
        }
    }

    fn into_stopped(self) -> DsStopped<M, L> {
        let Self { unit, area, bts, pebs, .. } = self;
        DsStopped::new(unit, area, bts, pebs)
    }

    fn into_parts(self) -> (DsUnit<M>, DsArea<L>) {
        (self.unit, self.area)
    }
}

impl<M: Msr, L: LinearMemory, B: Sink + ?Sized, P: Sink + ?Sized> Serve<(&mut B, &mut P)>
    for DsSession<M, L>
{
    fn status(&self) -> Requests {
        self.status_bits().into()
    }

    /// The index says whether the interrupt was for these buffers: processors do not set OvfBuf for branch records
    /// reliably.
    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.is_due())
    }

    fn serve(
        &mut self,
        seen: Requests,
        (branches, samples): &mut (&mut B, &mut P),
        halted: &Halted,
    ) -> Result<bool, GeneralProtection> {
        let due = self.is_due();
        if due {
            self.collect(halted);
            self.deliver(*branches, *samples, halted);
        }
        Ok(due || !seen.is_empty())
    }

    fn resume(&mut self, halted: Halted) -> Result<(), GeneralProtection> {
        self.collect(&halted);
        self.go_on(halted)
    }

    /// What does not let itself be stopped goes on.
    fn abandon(&mut self, _: Abandoned) {
        if self.halt().is_err() {
            return;
        }
        if self.control.is_some() {
            self.bts.abandon();
        }
        if self.program.is_some() {
            self.pebs.abandon();
        }
    }
}
