//! A unit with the buffer it traces into: the steps that start, PMI handler and stop are made of.

use super::ring::Ring;
use super::running::State;
use super::unit::{StartError, Unit};
use super::{OperationalError, Stopped, Trace, TraceOff};
use crate::buffer::{Buffer, Guard, Mode};
use crate::config::Checked;
use crate::detect::other_recorder;
use crate::drain::{Gaps, Piece, Pieces, Sink};
use crate::loss::{Gap, Loss};
use crate::memory::Frames;
use crate::msr::{
    GeneralProtection, GlobalStatus, GlobalStatusReset, Msr, OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus,
};
use crate::pmi::Abandoned;
use crate::topa::Marks;
use core::sync::atomic::{Ordering, fence};

#[derive(Debug)]
pub(super) struct Session<M: Msr, F: Frames> {
    unit: Unit<M>,
    buffer: Buffer<F>,
    /// IA32_RTIT_CTL without TraceEn.
    ctl: RtitCtl,
    ring: Ring,
    gaps: Gaps,
    loss: Loss,
    state: State,
    /// TraceEn is set.
    on: bool,
    /// The trace was on since the output registers were read last.
    unread: bool,
    /// The next enable must give a PSB: what comes before it is cut, or is not there.
    resync: bool,
    /// The current region is used up.
    filled: bool,
    /// What was behind the head when the trace went on.
    guard: Guard,
}

/// Sixteen bytes that begin no packet.
const GUARD: Guard = [0xc5; 16];
/// Bytes before the head that may be the guard's, or behind it in its region.
const GUARD_REACH: u64 = 2 * GUARD.len() as u64;

impl<M: Msr, F: Frames> Session<M, F> {
    pub(super) const fn new(unit: Unit<M>, buffer: Buffer<F>, ctl: RtitCtl) -> Self {
        let ring = Ring::new(buffer.region_bytes(), buffer.regions());
        Self {
            unit,
            buffer,
            ctl,
            ring,
            gaps: Gaps::new(),
            loss: Loss::NONE,
            state: State::Tracing,
            on: false,
            unread: false,
            resync: true,
            filled: false,
            guard: GUARD,
        }
    }

    pub(super) const fn loss(&self) -> &Loss {
        &self.loss
    }

    pub(super) const fn state(&self) -> State {
        self.state
    }

    pub(super) fn undrained(&self) -> u64 {
        self.ring.head() - self.ring.tail()
    }

    /// Starts from nothing.
    pub(super) fn begin(&mut self, checked: &Checked) -> Result<(), StartError> {
        self.unit.claim()?;
        if self.buffer.mode() != Mode::Overwrite {
            // One from an earlier trace would be taken for this one's.
            self.unit.write(GlobalStatusReset(GlobalStatus::TRACE_TOPA_PMI))?;
        }
        self.buffer.reset(&TraceOff(()));
        self.arm()?;
        self.unit.write_filters(checked)?;
        match self.enable()? {
            None => Ok(()),
            Some(error) => Err(StartError::OperationalError(error)),
        }
    }

    /// Clears TraceEn: all packets are in memory, and the output registers say how far.
    pub(super) fn quiesce(&mut self) -> Result<TraceOff, GeneralProtection> {
        if self.on {
            self.unit.write(self.ctl)?;
            self.on = false;
            // The write has flushed the packets as if by SFENCE; another processor that sees what we publish from here
            // on sees them too.
            fence(Ordering::SeqCst);
        }
        Ok(TraceOff(()))
    }

    /// Reads how far the processor came; `filled`: a PMI said that a region with INT is full.
    pub(super) fn collect(&mut self, filled: bool, _off: &TraceOff) -> Result<(), GeneralProtection> {
        if !self.unread {
            return Ok(());
        }
        let status: RtitStatus = self.unit.msr.read()?;
        let base: OutputBase = self.unit.msr.read()?;
        let pointers: OutputMaskPtrs = self.unit.msr.read()?;
        self.unread = false;
        self.filled = filled;
        let mut error = status.contains(RtitStatus::ERROR);
        match self.buffer.position(base, pointers) {
            None => error = true,
            Some((region, offset)) => {
                let at_end = offset == self.buffer.region_bytes();
                self.advance(region, offset, filled, status.contains(RtitStatus::STOPPED) && at_end);
                if status.contains(RtitStatus::STOPPED) && !at_end {
                    self.loss.trace_stop += 1;
                    self.state = State::TraceStopped;
                }
            }
        }
        if error {
            self.loss.error += 1;
            // Where a STOP was noted, one gap is enough.
            if !self.resync {
                self.gaps.push(self.ring.head(), Gap::Error);
            }
            self.resync = true;
        }
        Ok(())
    }

    /// Hands what is there to `sink`, as far as it takes it.
    pub(super) fn deliver(&mut self, sink: &mut (impl Sink + ?Sized), _off: &TraceOff) {
        let keep = self.buffer.mode() == Mode::Overwrite;
        for piece in Pieces::new(&self.buffer, self.ring, self.gaps) {
            match piece {
                Piece::Gap(gap) => {
                    if !sink.gap(gap) {
                        break;
                    }
                    if !keep {
                        self.gaps.take_until(self.ring.tail());
                    }
                }
                Piece::Bytes(bytes) => {
                    let done = sink.bytes(bytes).min(bytes.len());
                    if !keep {
                        self.ring.consume(done as u64);
                    }
                    if done < bytes.len() {
                        break;
                    }
                }
            }
        }
    }

    /// Goes on where it was stopped, if there is room.
    pub(super) fn resume(&mut self) -> Result<(), GeneralProtection> {
        match self.state {
            State::TraceStopped | State::Failed(_) => return Ok(()),
            State::Tracing | State::Full | State::Excluded | State::Abandoned(_) => {}
        }
        if self.on || self.is_excluded() || !self.arm()? {
            return Ok(());
        }
        if let Some(error) = self.enable()? {
            self.loss.error += 1;
            self.gaps.push(self.ring.head(), Gap::Error);
            self.state = State::Failed(error);
            self.quiesce()?;
            // Nothing was traced: the registers say nothing about the trace.
            self.unread = false;
        }
        Ok(())
    }

    /// Whether somebody else has begun to record branches while the trace was off.
    fn is_excluded(&mut self) -> bool {
        let excluded = other_recorder(&mut self.unit.msr, &self.unit.capabilities).is_some();
        if excluded {
            self.loss.excluded += u64::from(self.state != State::Excluded);
            self.state = State::Excluded;
        }
        excluded
    }

    /// Forgets why the trace is off; the next [`Session::resume`] begins with a PSB.
    pub(super) fn forgive(&mut self) {
        if self.state != State::Excluded {
            self.state = State::Tracing;
        }
        self.resync = true;
    }

    /// It is left off: what runs until it goes on is lost. One that does not let itself be stopped runs on.
    pub(super) fn abandon(&mut self, why: Abandoned) {
        if self.quiesce().is_err() || matches!(self.state, State::Abandoned(_)) {
            return;
        }
        self.loss.abandoned += 1;
        self.state = State::Abandoned(why);
    }

    pub(super) fn into_parts(self) -> (Unit<M>, Buffer<F>) {
        (self.unit, self.buffer)
    }

    /// The trace is off and its end was read.
    pub(super) fn into_stopped(self) -> Stopped<M, F> {
        let Self { unit, buffer, ring, gaps, loss, .. } = self;
        Stopped { unit, trace: Trace::new(buffer, ring, gaps), loss }
    }

    fn advance(&mut self, region: u32, offset: u64, filled: bool, topa_stop: bool) {
        match self.buffer.mode() {
            Mode::Overwrite => self.advance_snapshot(region, offset),
            Mode::StopWhenFull { .. } => {
                let distance = self.ring.distance(region, offset);
                // Only the whole of an empty ring ends where it began, and only STOP ends it there.
                let all = distance == 0 && topa_stop;
                self.ring.written(if all { self.ring.capacity() } else { distance });
            }
            Mode::Circular { .. } => {
                let distance = self.ring.distance(region, offset);
                let lapped = self.guard_is_gone() && distance < self.ring.capacity() - GUARD_REACH;
                let lap = if lapped || distance == 0 && filled { self.ring.capacity() } else { 0 };
                self.ring.written(distance + lap);
                let lost = self.ring.drop_overwritten();
                if lost > 0 {
                    self.loss.wrap += 1;
                    self.loss.wrapped_bytes += lost;
                    self.gaps.wrap(self.ring.tail(), lost);
                }
            }
        }
        if topa_stop {
            self.loss.stop += 1;
            self.gaps.push(self.ring.head(), Gap::Stop);
            self.resync = true;
        }
    }

    fn advance_snapshot(&mut self, region: u32, offset: u64) {
        // The ring was zero at the start: once there is something behind the place of the next byte, it wrapped.
        let wrapped = self.loss.wrap > 0 || !self.buffer.is_zero_from(region, offset);
        self.ring.snapshot(region, offset, wrapped);
        self.gaps = Gaps::new();
        if wrapped {
            self.loss.wrap = 1;
            self.gaps.push(self.ring.tail(), Gap::Wrap { bytes: 0 });
        }
    }

    /// Writes the registers for the next stretch; `false`: there is no room for one.
    fn arm(&mut self) -> Result<bool, GeneralProtection> {
        let off = TraceOff(());
        if self.gaps.is_full() || !self.open_window(&off) {
            self.loss.full += u64::from(self.state != State::Full);
            self.state = State::Full;
            return Ok(false);
        }
        self.set_guard(&off);
        if self.resync {
            self.unit.write(RtitStatus::empty())?;
        }
        let (region, offset) = self.ring.place(self.ring.head());
        // An offset is below a region's size, which is below 2^32.
        let (base, pointers) = self.buffer.registers(region, offset as u32);
        self.unit.write(base)?;
        self.unit.write(pointers)?;
        self.resync = false;
        self.filled = false;
        self.state = State::Tracing;
        Ok(true)
    }

    /// Puts INT and STOP where the free part of the ring has them; `false`: nothing is free.
    fn open_window(&mut self, off: &TraceOff) -> bool {
        let Mode::StopWhenFull { spare } = self.buffer.mode() else { return true };
        let chained = self.buffer.is_chained_by_driver();
        if chained && self.filled {
            self.leave_region(off);
        }
        let Some(window) = self.ring.window(spare) else { return false };
        // A region that the driver chains has both: the PMI comes before it is full.
        let (int, stop) = if chained { (window.first, window.first) } else { (window.int, window.stop) };
        self.buffer.mark(Marks { int: Some(int), stop: Some(stop) }, off);
        true
    }

    /// Puts bytes behind the place where the trace goes on that no trace has, or, where bytes are that were not drained,
    /// remembers them: they change when the processor goes round.
    fn set_guard(&mut self, off: &TraceOff) {
        if !matches!(self.buffer.mode(), Mode::Circular { .. }) {
            return;
        }
        let (region, offset) = self.guard_place();
        if self.undrained() == 0 {
            self.buffer.poke(region, offset, GUARD, off);
        }
        self.guard = self.buffer.peek(region, offset);
    }

    fn guard_is_gone(&self) -> bool {
        let (region, offset) = self.guard_place();
        self.buffer.peek(region, offset) != self.guard
    }

    /// In one region, less than [`GUARD_REACH`] before the head.
    fn guard_place(&self) -> (u32, u64) {
        const SIZE: u64 = GUARD.len() as u64;
        match self.ring.place(self.ring.head()) {
            (region, offset @ SIZE..) => (region, offset - SIZE),
            (0, _) => (self.buffer.regions() - 1, self.buffer.region_bytes() - SIZE),
            (region, _) => (region - 1, self.buffer.region_bytes() - SIZE),
        }
    }

    /// Leaves the rest of a region whose PMI came before it was full.
    fn leave_region(&mut self, off: &TraceOff) {
        let (region, offset) = self.ring.place(self.ring.head());
        if offset == 0 {
            return;
        }
        if self.undrained() == 0 && self.gaps.first_place().is_none() {
            self.ring.skip_to_next_region();
        } else {
            let bytes = self.buffer.pad(region, offset, off);
            self.ring.written(bytes);
        }
    }

    /// Sets TraceEn, and looks whether the processor takes tables and memory.
    fn enable(&mut self) -> Result<Option<OperationalError>, GeneralProtection> {
        // Tables and cleared memory are written before the processor may read or write there.
        fence(Ordering::SeqCst);
        self.unit.write(self.ctl.union(RtitCtl::TRACE_EN))?;
        self.on = true;
        self.unread = true;
        let status: RtitStatus = self.unit.msr.read()?;
        if !status.contains(RtitStatus::ERROR) {
            return Ok(None);
        }
        let base = self.unit.msr.read()?;
        let pointers = self.unit.msr.read()?;
        Ok(Some(OperationalError { status, base, pointers }))
    }
}
