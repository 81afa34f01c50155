//! A debug store together with the area that it records into: the steps of start, PMI handler and stop.

use super::config::CheckedDs;
use super::progress::{DsState, Progress};
use super::unit::DsUnit;
use super::{BufferMode, DsArea, DsRefusal, DsStopped, Half, LinearMemory};
use crate::drain::Sink;
use crate::intel::pebs::Program;
use crate::lifecycle::{Halted, NotBacked, Recording, Sealed, Serve, StartError};
use crate::loss::Loss;
use crate::msr::{
    DebugCtl, DebugFlags, DsAreaBase, GeneralProtection, GlobalStatus, GlobalStatusReset, Msr, PebsEnable,
    Register, TypedMsr,
};
use crate::pmi::{Abandoned, Requests};
use core::sync::atomic::{Ordering, fence};

/// The debug store with the area that it records into.
#[derive(Debug)]
pub struct DsSession<M: Msr, L: LinearMemory> {
    unit: DsUnit<M>,
    area: DsArea<L>,
    /// The flags that are set while branches are recorded, if they are.
    control: Option<DebugFlags>,
    /// The same flags as bits of the register, and the mask of all bits there that belong to this driver.
    bits: (u64, u64),
    /// The counters that sample, if any.
    program: Option<Program>,
    bts: Progress,
    pebs: Progress,
    /// True while branches are recorded.
    branches: bool,
    /// True if IA32_DS_AREA names the area.
    named: bool,
    /// True if another owner has used the counters, so that their registers must be written again.
    unprepared: bool,
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
        Self {
            unit,
            area,
            control,
            bits,
            program,
            bts,
            pebs,
            branches: false,
            named: false,
            unprepared: false,
        }
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

    /// Returns this session's bits in IA32_PERF_GLOBAL_STATUS, on processors that have the register.
    fn status_bits(&self) -> GlobalStatus {
        let counters = self.program.as_ref().map_or(GlobalStatus::empty(), Program::status);
        match self.unit.capabilities().global_status {
            true => GlobalStatus::OVF_BUF.union(counters),
            false => GlobalStatus::empty(),
        }
    }

    /// Checks that the control register kept the bits that enable the recording of branches.
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

    /// Returns whether an index is at its threshold, so that it must be served. May be called while the processor
    /// records.
    pub(super) fn is_due(&self) -> bool {
        let due = |half: Half, progress: &Progress| {
            self.state(half).is_some() && self.area.half(half).is_some_and(|buffer| progress.is_due(buffer))
        };
        due(Half::Bts, &self.bts) || due(Half::Pebs, &self.pebs)
    }

    /// Halts both halves, and reads the processor's indices. If one half cannot be halted, the other one is off.
    pub(super) fn halt_and_collect(&mut self) -> Result<Halted, GeneralProtection> {
        let halted = Halted::halt(self).inspect_err(|&fault| self.note_what_is_off(fault))?;
        self.collect(&halted);
        Ok(halted)
    }

    /// Reads the processor's indices.
    fn collect(&mut self, _: &Halted) {
        if let Some(buffer) = self.area.half(Half::Bts) {
            self.bts.collect(buffer);
        }
        if let Some(buffer) = self.area.half(Half::Pebs) {
            self.pebs.collect(buffer);
        }
    }

    /// Offers the records to the sinks, as far as they take them.
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

    /// Resumes each half that has room.
    pub(super) fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        // The management area must be written before the processor reads it.
        fence(Ordering::SeqCst);
        if !self.claim_again()? {
            return Ok(());
        }
        match (&mut self.program, self.area.half(Half::Pebs)) {
            (Some(program), Some(buffer)) if self.pebs.may_go_on(buffer) => {
                if !program.is_on() && self.unit.msr.read::<PebsEnable>()?.0 != 0 {
                    // Another owner's samples go into a trace of Intel PT.
                    self.pebs.exclude();
                } else {
                    self.pebs.begin(buffer);
                    // SAFETY: the processor writes records where IA32_DS_AREA and the management area say. This is
                    // memory of the session, which owns it until the counters are stopped.
                    unsafe { program.go_on(&mut self.unit.msr, self.pebs.lost_samples()) }?;
                }
            }
            _ => {}
        }
        match (self.control, self.area.half(Half::Bts)) {
            (Some(_), Some(buffer)) if !self.branches && self.bts.may_go_on(buffer) => self.record_branches(),
            _ => Ok(()),
        }
    }

    /// Returns whether IA32_DS_AREA names this session's area. The session owns the area from its start to its end, so
    /// the address is proof, whatever the allocator has given out since.
    fn has_registers(&mut self) -> Result<bool, GeneralProtection> {
        let DsAreaBase(area) = self.unit.msr.read()?;
        Ok(area == self.area.address())
    }

    /// Makes IA32_DS_AREA name the area again if another owner has taken the unit over and has ended. Returns `false`
    /// while another owner uses the unit.
    fn claim_again(&mut self) -> Result<bool, GeneralProtection> {
        if !self.has_registers()? {
            let taken = self.unit.msr.read::<DsAreaBase>()?.0 != 0;
            self.give_up_registers();
            if taken || self.counters_are_used()? {
                self.exclude();
                return Ok(false);
            }
            // SAFETY: the management area and the buffers belong to this session, and nothing is recorded yet.
            unsafe { self.unit.msr.write(DsAreaBase(self.area.address())) }?;
            (self.named, self.unprepared) = (true, true);
        }
        if let Some(program) = self.program.as_mut().filter(|_| self.unprepared) {
            program.prepare(&mut self.unit.msr)?;
        }
        self.unprepared = false;
        Ok(true)
    }

    fn counters_are_used(&mut self) -> Result<bool, GeneralProtection> {
        match &self.program {
            Some(program) => Ok(program.in_use(&mut self.unit.msr)?.is_some()),
            None => Ok(false),
        }
    }

    /// Marks the halves as off that another owner, who has taken the unit over, has turned off.
    fn give_up_registers(&mut self) {
        if core::mem::take(&mut self.branches) {
            self.bts.turn_off();
        }
        if let Some(program) = &mut self.program {
            if program.may_count() {
                self.pebs.turn_off();
            }
            program.forget();
        }
        self.named = false;
    }

    /// Notes that another owner uses the unit.
    fn exclude(&mut self) {
        if self.control.is_some() {
            self.bts.exclude();
        }
        if self.program.is_some() {
            self.pebs.exclude();
        }
    }

    /// Notes the halves that a call has left off because an access raised #GP.
    pub(super) fn note_what_is_off(&mut self, fault: GeneralProtection) {
        let why = Abandoned::Fault(fault);
        if self.control.is_some() && !self.branches {
            self.bts.abandon(why);
        }
        if self.program.as_ref().is_some_and(|program| !program.is_on()) {
            self.pebs.abandon(why);
        }
    }

    /// Keeps both halves off until [`DsSession::wake`].
    pub(super) fn suspend(&mut self) {
        self.bts.suspend();
        self.pebs.suspend();
    }

    /// Lets [`DsSession::go_on`] resume the halves again.
    pub(super) fn wake(&mut self) {
        self.bts.wake();
        self.pebs.wake();
    }

    /// Returns whether a half requests PMIs.
    fn interrupts(&self) -> bool {
        let branches = self.control.is_some() && self.area.mode(Half::Bts) != Some(BufferMode::Circular);
        branches || self.program.is_some()
    }

    fn record_branches(&mut self) -> Result<(), GeneralProtection> {
        let (on, mine) = self.bits;
        // Other owners may have begun while it was off.
        let bits = match self.unit.claim_branches() {
            Ok(bits) => bits,
            Err(StartError::Fault(fault)) => return Err(fault),
            Err(_) => {
                self.bts.exclude();
                return Ok(());
            }
        };
        // SAFETY: the processor writes records where IA32_DS_AREA and the management area say. This is memory of the
        // session, which owns it until TR is cleared.
        unsafe { self.unit.msr.write(DebugCtl(bits & !mine | on)) }?;
        self.branches = true;
        if let Some(buffer) = self.area.half(Half::Bts) {
            self.bts.begin(buffer);
        }
        Ok(())
    }

    fn stop_branches(&mut self) -> Result<(), GeneralProtection> {
        if self.branches {
            let (on, mine) = self.bits;
            let DebugCtl(bits) = self.unit.msr.read()?;
            // SAFETY: this only ends writes to memory.
            unsafe { self.unit.msr.write(DebugCtl(bits & !mine)) }?;
            self.branches = false;
            // A VM exit clears the register, INIT and a machine check some of its bits.
            if bits & mine != on {
                self.bts.turn_off();
            }
        }
        Ok(())
    }

    /// Stops the counters. If a PMI freezes counters by clearing their bits, that is no unseen loss.
    fn stop_samples(&mut self) -> Result<(), GeneralProtection> {
        let Some(program) = &mut self.program else { return Ok(()) };
        if program.stop(&mut self.unit.msr)? {
            return Ok(());
        }
        let control = self.unit.capabilities().control;
        if !control.flags(self.unit.msr.read()?).contains(DebugFlags::FREEZE_PERFMON_ON_PMI) {
            self.pebs.turn_off();
        }
        Ok(())
    }
}

impl<M: Msr, L: LinearMemory> Sealed for DsSession<M, L> {}

impl<M: Msr, L: LinearMemory> Recording for DsSession<M, L> {
    type Unit = DsUnit<M>;
    type Memory = DsArea<L>;
    type Stopped = DsStopped<M, L>;
    type Refusal = DsRefusal;

    const WRITES_MEMORY: bool = true;

    /// Starts with empty buffers: first the management area, the counters and IA32_DS_AREA, then the enable bits.
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
                // A request that an earlier recording left would be treated as this recording's.
                // SAFETY: this clears bits of units that are off; no memory is written.
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
        // SAFETY: the management area belongs to this session. Its fields name buffers that belong to the session too,
        // and nothing is recorded yet.
        unsafe { self.unit.msr.write(DsAreaBase(self.area.address())) }?;
        self.named = true;
        let halted = Halted::halt(self)?;
        self.go_on(halted)?;
        self.check_backed()
    }

    /// Clears TR and its related flags, and stops the counters: no record is written any more. If one of them cannot be
    /// stopped, the others still are.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        let on = self.branches || self.program.as_ref().is_some_and(Program::may_count);
        if on && self.named && !self.has_registers()? {
            // Another owner's recording is on, and goes to that one's memory.
            self.give_up_registers();
            fence(Ordering::SeqCst);
            return Ok(());
        }
        let branches = self.stop_branches();
        let samples = self.stop_samples();
        // After this fence, another processor that sees a value published later sees the records too: see `memory`.
        fence(Ordering::SeqCst);
        branches.and(samples)
    }

    fn finish(&mut self, halted: &Halted) -> Result<(), GeneralProtection> {
        self.collect(halted);
        Ok(())
    }

    /// Sets IA32_DS_AREA to 0, and releases the counters.
    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        if self.named && !self.has_registers()? {
            self.give_up_registers();
        }
        if self.named {
            // SAFETY: nothing is recorded, and the next recording sets an area first.
            unsafe { self.unit.msr.write(DsAreaBase(0)) }?;
            self.named = false;
        }
        match &mut self.program {
            Some(program) => program.put_back(&mut self.unit.msr),
            None => Ok(()),
        }
    }

    /// Counts the halves that were left off. A half that cannot be stopped keeps running.
    fn abandon(&mut self, why: Abandoned) {
        if self.halt().is_err() {
            return;
        }
        if self.control.is_some() {
            self.bts.abandon(why);
        }
        if self.program.is_some() {
            self.pebs.abandon(why);
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

    /// Checks the index to see whether the interrupt was for these buffers: processors do not set OvfBuf reliably for
    /// branch records.
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
}
