//! A unit with the area it records into: the steps that start, PMI handler and stop are made of.

use super::running::State;
use super::unit::{StartError, Unit};
use super::{Control, ControlRegister, Stopped};
use crate::drain::Sink;
use crate::ds::{BufferMode, DsArea, LinearMemory};
use crate::loss::{Gap, Loss};
use crate::msr::{DsAreaBase, GeneralProtection, GlobalStatus, GlobalStatusReset, Msr};
use core::sync::atomic::{Ordering, fence};

#[derive(Debug)]
pub(super) struct Session<M: Msr, L: LinearMemory> {
    unit: Unit<M>,
    area: DsArea<L>,
    /// What is set while branches are recorded.
    control: Control,
    loss: Loss,
    state: State,
    on: bool,
    /// IA32_DS_AREA names the area.
    named: bool,
    /// Branches were recorded since the index was looked at last.
    unread: bool,
    /// Bytes of records from the base on; in a circular buffer the place of the next one.
    filled: u64,
    /// Branches are missing behind the last record.
    cut: Option<Gap>,
}

impl<M: Msr, L: LinearMemory> Session<M, L> {
    pub(super) const fn new(unit: Unit<M>, area: DsArea<L>, control: Control) -> Self {
        let state = State::Recording;
        Self {
            unit,
            area,
            control,
            loss: Loss::NONE,
            state,
            on: false,
            named: false,
            unread: false,
            filled: 0,
            cut: None,
        }
    }

    pub(super) const fn loss(&self) -> &Loss {
        &self.loss
    }

    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// Its bit in IA32_PERF_GLOBAL_STATUS, on processors that have the register.
    pub(super) const fn status(&self) -> GlobalStatus {
        match self.unit.capabilities().global_status {
            true => GlobalStatus::OVF_BUF,
            false => GlobalStatus::empty(),
        }
    }

    /// Starts with an empty buffer: the management area, then IA32_DS_AREA, then the control register.
    pub(super) fn begin(&mut self) -> Result<(), StartError> {
        self.unit.claim()?;
        if self.area.mode() != BufferMode::Circular {
            self.unit.require_apic()?;
            if !self.status().is_empty() {
                // One from an earlier recording would be taken for this one's.
                // SAFETY: clears the bit of a unit that is off; no memory is written.
                unsafe { self.unit.msr.write(GlobalStatusReset(self.status())) }?;
            }
        }
        self.area.reset();
        // SAFETY: the management area that this session owns; its fields lead to a buffer that it owns too, and
        // nothing is recorded yet.
        unsafe { self.unit.msr.write(DsAreaBase(self.area.address())) }?;
        self.named = true;
        Ok(self.enable()?)
    }

    /// Clears TR and what goes with it: no record is written any more.
    pub(super) fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        if self.on {
            let mine = self.mine();
            let bits = self.unit.msr.rdmsr(ControlRegister::ADDRESS)?;
            // SAFETY: it only ends writes to memory.
            unsafe { self.unit.msr.wrmsr(ControlRegister::ADDRESS, bits & !mine) }?;
            self.on = false;
            // Another processor that sees what we publish from here on sees the records too.
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// Whether the index is at the threshold, and somebody has to look. Also while branches are recorded.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.area.mode(), BufferMode::Interrupt { .. })
            && self.state == State::Recording
            && self.area.is_due()
    }

    /// Looks how far the processor came. It is off.
    pub(super) fn collect(&mut self) {
        if !self.unread {
            return;
        }
        self.unread = false;
        match self.area.filled() {
            Ok(filled) => self.filled = filled,
            Err(bad) => {
                self.loss.error += 1;
                self.state = State::Failed(bad);
                self.cut = Some(Gap::Error);
                return;
            }
        }
        match self.area.mode() {
            BufferMode::Circular => self.loss.wrap = u64::from(self.area.went_round()),
            BufferMode::Interrupt { .. } if self.area.is_full() => {
                self.loss.stop += 1;
                self.cut = Some(Gap::Stop);
            }
            BufferMode::Interrupt { .. } => {}
        }
    }

    /// Hands what is there to `sink`, as far as it takes it: whole records.
    pub(super) fn deliver(&mut self, sink: &mut (impl Sink + ?Sized)) {
        if self.area.mode() == BufferMode::Circular {
            return self.show(sink);
        }
        let records = self.area.records(0, self.filled);
        let done = match records.is_empty() {
            true => 0,
            false => sink.bytes(records).min(records.len()) as u64,
        };
        let done = done - done % self.area.record_bytes();
        let all = done == self.filled;
        if done > 0 {
            self.area.consume(done, self.filled);
            self.filled -= done;
        }
        if let Some(gap) = self.cut.filter(|_| all)
            && sink.gap(gap)
        {
            self.cut = None;
        }
    }

    /// Goes on, if there is room.
    pub(super) fn resume(&mut self) -> Result<(), GeneralProtection> {
        if self.on || !matches!(self.state, State::Recording | State::Full) {
            return Ok(());
        }
        let waits = self.area.mode() != BufferMode::Circular && (self.area.is_due() || self.cut.is_some());
        match waits {
            true => {
                self.loss.full += u64::from(self.state != State::Full);
                self.state = State::Full;
                Ok(())
            }
            false => {
                self.state = State::Recording;
                self.enable()
            }
        }
    }

    /// Stays off until [`Session::wake`].
    pub(super) fn suspend(&mut self) {
        if self.state == State::Recording {
            self.state = State::Suspended;
        }
    }

    /// Whether [`Session::resume`] may go on again.
    pub(super) fn wake(&mut self) {
        if self.state == State::Suspended {
            self.state = State::Recording;
        }
    }

    /// Makes IA32_DS_AREA name nothing. The recording is off.
    pub(super) fn leave(&mut self) -> Result<(), GeneralProtection> {
        if self.named {
            // SAFETY: nothing is recorded, and whoever records next sets an area first.
            unsafe { self.unit.msr.write(DsAreaBase(0)) }?;
            self.named = false;
        }
        Ok(())
    }

    pub(super) fn into_parts(self) -> (Unit<M>, DsArea<L>) {
        (self.unit, self.area)
    }

    /// The recording is off and its end was read.
    pub(super) fn into_stopped(self) -> Stopped<M, L> {
        let Self { unit, area, loss, filled, cut, .. } = self;
        Stopped::new(unit, area, loss, filled, cut)
    }

    /// A circular buffer, oldest record first. Nothing is taken out of it.
    fn show(&self, sink: &mut (impl Sink + ?Sized)) {
        for piece in super::stopped::pieces(&self.area, self.filled, self.cut) {
            let goes_on = match piece {
                crate::drain::Piece::Gap(gap) => sink.gap(gap),
                crate::drain::Piece::Bytes(bytes) => sink.bytes(bytes) >= bytes.len(),
            };
            if !goes_on {
                break;
            }
        }
    }

    fn enable(&mut self) -> Result<(), GeneralProtection> {
        let mine = self.mine();
        let bits = self.unit.msr.rdmsr(ControlRegister::ADDRESS)?;
        let on = self.unit.capabilities().control.bits(self.control);
        // The management area is written before the processor may read it.
        fence(Ordering::SeqCst);
        // SAFETY: records go where IA32_DS_AREA and the management area lead: memory of this session, until it clears
        // TR.
        unsafe { self.unit.msr.wrmsr(ControlRegister::ADDRESS, bits & !mine | on) }?;
        self.on = true;
        self.unread = true;
        Ok(())
    }

    /// The bits of the control register that are this driver's.
    fn mine(&self) -> u64 {
        let store = Control::TR | Control::BTS | Control::BTINT | Control::BTS_OFF_OS | Control::BTS_OFF_USR;
        self.unit.capabilities().control.bits(store)
    }
}
