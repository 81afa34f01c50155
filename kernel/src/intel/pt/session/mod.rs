//! A PT unit together with the buffer that it traces into: the steps of start, PMI handler and stop.

mod enable;
mod owner;
mod serve;

use super::chunks;
use super::detect::other_recorder;
use super::gaps::Gaps;
use super::ring::{Ring, Written};
use super::running::PtState;
use super::stretch::Stretches;
use super::unit::{PtRefusal, PtUnit};
use super::{OperationalError, PtStopped, PtTask, Trace, VmxTracing};
use crate::drain::Sink;
use crate::intel::pt::buffer::{Buffer, GUARD_BYTES, Mode, Position};
use crate::intel::pt::config::Checked;
use crate::intel::pt::topa::Marks;
use crate::lifecycle::{Halted, Recording, Sealed, StartError};
use crate::loss::{Gap, Loss, Overwritten};
use crate::memory::Frames;
use crate::msr::{
    GeneralProtection, GlobalStatus, GlobalStatusReset, Msr, OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus,
    TypedMsr,
};
use crate::pmi::Abandoned;
use core::mem::replace;
use core::sync::atomic::{Ordering, fence};
use owner::Found;
use pugmark_decoder_core::config::Config;

/// The PT unit with the buffer that it traces into.
#[derive(Debug)]
pub struct PtSession<M: Msr, F: Frames> {
    unit: PtUnit<M>,
    buffer: Buffer<F>,
    /// The filters. They are written each time that the trace resumes, because other owners may have used the
    /// registers.
    checked: Checked,
    /// IA32_RTIT_CTL without TraceEn.
    ctl: RtitCtl,
    /// The bits of IA32_RTIT_STATUS that are kept until the trace resumes.
    status: RtitStatus,
    ring: Ring,
    gaps: Gaps,
    loss: Loss,
    state: PtState,
    /// True if TraceEn is set, or would be if the trace were not paused.
    on: bool,
    /// The gate's count of clears when the driver set TraceEn; `None` if it has not.
    lit: Option<u64>,
    /// True if something else cleared TraceEn, which is not reported yet.
    turned_off: bool,
    /// The registers before the start.
    found: Option<Found>,
    /// True while the kernel has the trace suspended.
    suspended: bool,
    /// The last operational error.
    error: Option<OperationalError>,
    /// True if the trace was on since the output registers were last read.
    unread: bool,
    /// True if the next enable must emit a PSB, as the first one does, because the trace before it is cut.
    resync: bool,
    /// True if the PMI of a region that the driver chains has arrived: the rest of the region is skipped.
    filled: bool,
    /// True if there are guard bytes at the end of the free space.
    guarded: bool,
    /// True if a PMI was acknowledged and is not served yet, because an access faulted or the sink panicked.
    asked: bool,
}

/// The status bits that carry over from one stretch of a trace to the next.
const KEPT_STATUS: RtitStatus =
    RtitStatus::PACKET_BYTE_CNT.union(RtitStatus::PEND_PSB).union(RtitStatus::PEND_TOPA_PMI);

impl<M: Msr, F: Frames> PtSession<M, F> {
    pub(super) fn new(unit: PtUnit<M>, buffer: Buffer<F>, checked: Checked) -> Self {
        let ctl = checked.ctl.union(buffer.ctl());
        let ring = Ring::new(buffer.shape());
        Self {
            unit,
            buffer,
            checked,
            ctl,
            status: RtitStatus::empty(),
            ring,
            gaps: Gaps::new(),
            loss: Loss::NONE,
            state: PtState::Tracing,
            on: false,
            lit: None,
            turned_off: false,
            found: None,
            suspended: false,
            error: None,
            unread: false,
            resync: false,
            filled: false,
            guarded: false,
            asked: false,
        }
    }

    pub(super) const fn loss(&self) -> &Loss {
        &self.loss
    }

    pub(super) fn state(&self) -> PtState {
        match self.state {
            _ if self.suspended => PtState::Suspended,
            PtState::Tracing if self.is_paused() => PtState::Paused,
            state => state,
        }
    }

    pub(super) const fn last_error(&self) -> Option<OperationalError> {
        self.error
    }

    pub(super) fn vmx_tracing(&mut self) -> VmxTracing {
        self.unit.vmx_tracing()
    }

    /// Returns the undrained bytes of a suspended trace.
    pub(super) fn stretches(&self) -> Option<Stretches<'_, F>> {
        let still = self.suspended && !self.on && !self.unread;
        still.then(|| Stretches::new(&self.buffer, self.ring, self.gaps))
    }

    pub(super) fn decoder_config(&self) -> Config<'static> {
        self.checked.for_decoder(&self.unit.capabilities)
    }

    pub(super) const fn undrained(&self) -> u64 {
        self.ring.undrained()
    }

    /// Reads the processor's position. `asked`: this unit requested the PMI, whose status bit is already acknowledged.
    pub(super) fn collect(&mut self, asked: bool, halted: &Halted) -> Result<(), GeneralProtection> {
        if !self.unread {
            return Ok(());
        }
        let status: RtitStatus = self.unit.msr.read()?;
        let base: OutputBase = self.unit.msr.read()?;
        let pointers: OutputMaskPtrs = self.unit.msr.read()?;
        let at = self.buffer.position(base, pointers);
        self.filled |= asked && at.is_some();
        if self.is_chained_until_full() && at.is_some() {
            self.filled |= self.take_request()?;
        }
        self.unread = false;
        // Without a position the registers are another's.
        let status = if at.is_some() || !self.turned_off { status } else { RtitStatus::empty() };
        self.status = status.intersection(KEPT_STATUS);
        let abandoned = matches!(self.state, PtState::Abandoned(_));
        let stopped = status.contains(RtitStatus::STOPPED);
        let at_end = at.is_some_and(|at| at.offset == self.buffer.shape().size(at.region));
        let advanced = at.and_then(|at| self.written(at, stopped && at_end, halted));
        match advanced {
            Some(written) => self.advance(written),
            None => self.lose_the_ring(),
        }
        match (advanced, at_end) {
            (Some(_), true) if stopped => {
                self.loss.stop += 1;
                self.note(Gap::Stop);
            }
            (Some(_), _) if stopped => {
                self.loss.trace_stop += 1;
                self.state = PtState::TraceStopped;
            }
            _ => {}
        }
        let turned_off = replace(&mut self.turned_off, false);
        if status.contains(RtitStatus::ERROR) || advanced.is_none() && !turned_off {
            self.loss.error += 1;
            self.note(Gap::Error);
            self.error = Some(self.operational_error(status, base, pointers));
        }
        if turned_off {
            self.loss.turned_off += 1;
            self.note(Gap::TurnedOff);
        }
        if abandoned {
            self.note(Gap::Abandoned);
        }
        Ok(())
    }

    /// Halts the unit, and reads the processor's position. If the read faults, the trace is off and its state says so;
    /// one that cannot be halted still runs.
    pub(super) fn halt_and_collect(&mut self) -> Result<Halted, GeneralProtection> {
        let halted = Halted::halt(self)?;
        self.collect(false, &halted).inspect_err(|&fault| self.leave_off(Abandoned::Fault(fault)))?;
        Ok(halted)
    }

    /// Offers the trace to `sink`, as far as the sink takes it. If a call of the sink unwinds, bytes that it has taken
    /// before are not offered again.
    pub(super) fn deliver(&mut self, sink: &mut (impl Sink + ?Sized), _: &Halted) {
        match self.buffer.mode() {
            Mode::Overwrite => self.show(sink),
            _ => drop(chunks::deliver(&self.buffer, &mut self.ring, &mut self.gaps, sink)),
        }
    }

    /// Offers the trace to the sink. A separate function, to save stack.
    #[inline(never)]
    fn show(&self, sink: &mut (impl Sink + ?Sized)) {
        let (mut ring, mut gaps) = (self.ring, self.gaps);
        chunks::deliver(&self.buffer, &mut ring, &mut gaps, sink);
    }

    /// Checks that a trace can run on this processor.
    pub(super) fn accepts(&self, task: &PtTask<F>) -> Result<(), StartError<PtRefusal>> {
        match task.capabilities == self.unit.capabilities {
            true => Ok(()),
            false => Err(StartError::Refused(PtRefusal::OtherProcessor)),
        }
    }

    /// Puts `coming` in the place of this trace, which has been collected, resumes it, and returns this one. A fault is
    /// the state of the trace that came.
    pub(super) fn exchange(&mut self, coming: PtTask<F>, halted: Halted) -> PtTask<F> {
        let PtTask { capabilities, buffer, checked, ctl, status, ring, gaps, loss, state, error, .. } =
            coming;
        let PtTask { filled, guarded, begun, .. } = coming;
        let left = PtTask {
            capabilities,
            buffer: replace(&mut self.buffer, buffer),
            checked: replace(&mut self.checked, checked),
            ctl: replace(&mut self.ctl, ctl),
            status: replace(&mut self.status, status),
            ring: replace(&mut self.ring, ring),
            gaps: replace(&mut self.gaps, gaps),
            loss: replace(&mut self.loss, loss),
            state: replace(&mut self.state, state),
            error: replace(&mut self.error, error),
            filled: replace(&mut self.filled, filled),
            guarded: replace(&mut self.guarded, guarded),
            begun: true,
        };
        // The processor compresses packets by the last IP and the return stack of the trace that left.
        self.resync = true;
        if !begun {
            self.buffer.reset(&halted);
        }
        if let Err(fault) = self.go_on(halted) {
            self.leave_off(Abandoned::Fault(fault));
        }
        left
    }

    /// Suspends the trace, and reads the processor's position.
    pub(super) fn suspend(&mut self, halted: &Halted) -> Result<(), GeneralProtection> {
        self.suspended = true;
        self.collect(false, halted)
    }

    /// Ends what [`PtSession::suspend`] began; the next [`PtSession::go_on`] begins with a PSB.
    pub(super) fn wake(&mut self) {
        self.suspended = false;
        self.resync = true;
    }

    /// Resumes the trace where it was stopped, if there is room.
    pub(super) fn go_on(&mut self, halted: Halted) -> Result<(), GeneralProtection> {
        if self.suspended {
            return Ok(());
        }
        match self.state {
            PtState::TraceStopped | PtState::Failed(_) => return Ok(()),
            PtState::Tracing
            | PtState::Full
            | PtState::Excluded
            | PtState::Suspended
            | PtState::Paused
            | PtState::Abandoned(_) => {}
        }
        if self.is_excluded()? || !self.arm(&halted)? {
            return Ok(());
        }
        if let Some(error) = self.enable(halted)? {
            self.loss.error += 1;
            self.note(Gap::Error);
            self.state = PtState::Failed(error);
            self.halt()?;
            // Nothing was traced, so the registers say nothing about the trace.
            self.unread = false;
        }
        Ok(())
    }

    /// Writes all registers for a guest, and returns the value that a VM entry must load into IA32_RTIT_CTL: 0 if
    /// nothing can be traced.
    pub(super) fn admit_guest(&mut self, halted: Halted) -> Result<RtitCtl, GeneralProtection> {
        // A trace that contains host and guest needs a PSB, whose PIP tells them apart.
        self.resync |= !self.suspended;
        let ended = matches!(self.state, PtState::TraceStopped | PtState::Failed(_));
        if ended || self.is_paused() || self.is_excluded()? || !self.arm(&halted)? {
            return Ok(RtitCtl::empty());
        }
        self.unit.write(self.ctl)?;
        fence(Ordering::SeqCst);
        // From now on the processor may write, until `halt`.
        self.set_on(true);
        self.unread = true;
        self.resync = false;
        self.state = PtState::Tracing;
        Ok(self.ctl.union(RtitCtl::TRACE_EN))
    }

    /// Resumes the trace after a guest, unless it is suspended.
    pub(super) fn leave_guest(&mut self, halted: Halted) -> Result<(), GeneralProtection> {
        self.resync |= !self.suspended;
        self.go_on(halted)
    }

    /// Returns whether another owner has begun to trace, or to record branches, while the trace was off.
    fn is_excluded(&mut self) -> Result<bool, GeneralProtection> {
        let excluded = other_recorder(&mut self.unit.msr, &self.unit.capabilities).is_some()
            || self.unit.msr.read::<RtitCtl>()?.contains(RtitCtl::TRACE_EN);
        if excluded && self.state != PtState::Excluded {
            self.loss.excluded += 1;
            self.note(Gap::Excluded);
            self.state = PtState::Excluded;
        }
        Ok(excluded)
    }

    /// Clears the reason why the trace is off; the next [`PtSession::go_on`] begins with a PSB.
    pub(super) fn forgive(&mut self) {
        if matches!(self.state, PtState::TraceStopped | PtState::Failed(_)) {
            self.state = PtState::Tracing;
        }
        self.resync = true;
    }

    /// Leaves the trace off: execution until the resume is lost. A trace that cannot be stopped keeps running, and one
    /// that is off for another reason keeps that reason.
    pub(super) fn leave_off(&mut self, why: Abandoned) {
        if self.halt().is_err() || self.suspended || self.state != PtState::Tracing {
            return;
        }
        self.loss.abandoned += 1;
        self.state = PtState::Abandoned(why);
        // If the trace's position is still unread, `collect` notes the gap.
        if !self.unread {
            self.note(Gap::Abandoned);
        }
    }

    /// Notes a gap at the head; the trace after it begins with a PSB.
    fn note(&mut self, gap: Gap) {
        self.gaps.push(self.ring.head(), gap);
        self.resync = true;
    }

    /// Accounts for the bytes that the processor has written.
    fn advance(&mut self, written: Written) {
        let Some(overwritten) = self.ring.written(written) else { return };
        let mut overwritten = overwritten;
        // If more bytes than known may have been overwritten, the bytes after the remaining gaps are unknown.
        if let (Written::AtLeast(_), Some(place)) = (written, self.gaps.last_place()) {
            let doubtful = place.saturating_sub(self.ring.tail());
            self.ring.consume(doubtful);
            self.gaps.drop_until(place);
            overwritten = overwritten.and(Overwritten::Exactly(doubtful));
        }
        self.note_overwritten(overwritten);
    }

    /// Notes that bytes before the tail were overwritten or given up. They join the gap of overwritten bytes that was
    /// not reported to a sink yet.
    fn note_overwritten(&mut self, overwritten: Overwritten) {
        match self.gaps.overwritten() {
            Some(Overwritten::Perhaps) => self.loss.perhaps_wrapped -= 1,
            Some(_) => self.loss.wrap -= 1,
            None => {}
        }
        self.gaps.wrap(self.ring.tail(), overwritten);
        self.loss.wrapped_bytes += overwritten.least();
        match self.gaps.overwritten() {
            Some(Overwritten::Perhaps) => self.loss.perhaps_wrapped += 1,
            _ => self.loss.wrap += 1,
        }
    }

    /// Accounts for a position that cannot be read: the number of bytes written is unknown, and, in a buffer where
    /// nothing stops the processor, of those overwritten.
    fn lose_the_ring(&mut self) {
        if let Mode::StopWhenFull { .. } = self.buffer.mode() {
            return;
        }
        let bytes = self.ring.undrained();
        self.ring.consume(bytes);
        self.note_overwritten(Overwritten::Perhaps);
    }

    /// Returns the number of bytes that the processor, now at `at`, has written; `None` if it cannot have come there.
    fn written(&self, at: Position, topa_stop: bool, halted: &Halted) -> Option<Written> {
        let Position { lap, region, offset } = at;
        match self.buffer.mode() {
            Mode::StopWhenFull { .. } => {
                let distance = self.ring.distance(region, offset);
                // Only a trace that filled an empty ring completely ends at its start, and only STOP ends it there.
                let all = distance == 0 && topa_stop;
                Some(Written::Exactly(if all { self.ring.capacity() } else { distance }))
            }
            Mode::Circular { .. } | Mode::Overwrite if self.buffer.laps() > 1 => {
                self.ring.counted(lap, self.buffer.laps(), region, offset)
            }
            Mode::Circular { .. } | Mode::Overwrite => {
                let end = self.ring.tail();
                let intact = self.guarded.then(|| self.buffer.look_at_guard(end, halted));
                Some(self.ring.guarded(region, offset, intact.as_ref().map_or(&[], |intact| intact)))
            }
        }
    }

    /// Writes the registers for the next stretch of the trace; returns `false` if there is no room.
    fn arm(&mut self, halted: &Halted) -> Result<bool, GeneralProtection> {
        if !self.make_room_for_gaps() || !self.open_window(halted) {
            if self.state != PtState::Full {
                self.loss.full += 1;
                self.note(Gap::Full);
                self.state = PtState::Full;
            }
            return Ok(false);
        }
        self.set_guard(halted);
        self.unit.write(self.next_status())?;
        let (region, offset) = self.ring.place(self.ring.head());
        // An offset is below the region's size, which is below 2^32.
        let (base, pointers) = self.buffer.registers(region, offset as u32);
        self.unit.write(base)?;
        self.unit.write(pointers)?;
        self.unit.write_filters(&self.checked)?;
        Ok(true)
    }

    /// Returns IA32_RTIT_STATUS for the next stretch. PacketByteCnt 0 makes the stretch begin with a PSB; a pending PMI
    /// is for bytes already written, and stays due.
    const fn next_status(&self) -> RtitStatus {
        match self.resync {
            true => self.status.intersection(RtitStatus::PEND_TOPA_PMI),
            false => self.status,
        }
    }

    /// Returns whether another gap can be noted. A ring in overwrite mode gives up its oldest bytes to make room.
    fn make_room_for_gaps(&mut self) -> bool {
        let gives_up = self.gaps.is_full() && self.buffer.mode() == Mode::Overwrite;
        if let Some(place) = self.gaps.second_place().filter(|_| gives_up) {
            let bytes = place - self.ring.tail();
            self.ring.consume(bytes);
            self.note_overwritten(Overwritten::Exactly(bytes));
        }
        !self.gaps.is_full()
    }

    /// Sets INT and STOP on the right regions of the ring's free part; returns `false` if nothing is free.
    fn open_window(&mut self, halted: &Halted) -> bool {
        let Mode::StopWhenFull { spare } = self.buffer.mode() else { return true };
        let chained = self.buffer.is_chained_by_driver();
        if chained && self.filled {
            self.leave_region(halted);
            self.filled = false;
        }
        let Some(window) = self.ring.window(spare) else { return false };
        // A region that the driver chains has both flags: its PMI arrives before the region is full.
        let (int, stop) = if chained { (window.first, window.first) } else { (window.int, window.stop) };
        self.buffer.mark(Marks { int: Some(int), stop: Some(stop) }, halted);
        true
    }

    /// Returns whether the PMI arrives before the region is full, and the driver then continues in another region.
    fn is_chained_until_full(&self) -> bool {
        self.buffer.is_chained_by_driver() && matches!(self.buffer.mode(), Mode::StopWhenFull { .. })
    }

    /// Returns whether the unit has requested a PMI that was not handled yet, and acknowledges it: the handler of that
    /// PMI will find nothing to do.
    fn take_request(&mut self) -> Result<bool, GeneralProtection> {
        let status: GlobalStatus = self.unit.msr.read()?;
        let asks = status.contains(GlobalStatus::TRACE_TOPA_PMI);
        if asks {
            self.unit.write(GlobalStatusReset(GlobalStatus::TRACE_TOPA_PMI))?;
        }
        Ok(asks)
    }

    /// Writes guard bytes at the end of the free space, if there is room for them. If the tables do not show the
    /// processor's laps in the ring, the guard bytes do.
    fn set_guard(&mut self, halted: &Halted) {
        let ring = matches!(self.buffer.mode(), Mode::Circular { .. } | Mode::Overwrite);
        let free = self.ring.capacity() - self.ring.undrained();
        self.guarded = ring && self.buffer.laps() == 1 && free >= GUARD_BYTES;
        if self.guarded {
            self.buffer.set_guard(self.ring.tail(), halted);
        }
    }

    /// Skips the rest of a region whose PMI arrived before it was full.
    fn leave_region(&mut self, halted: &Halted) {
        let (region, offset) = self.ring.place(self.ring.head());
        if offset == 0 {
            return;
        }
        if self.undrained() == 0 && self.gaps.first_place().is_none() {
            self.ring.skip_to_next_region();
        } else {
            let end = self.ring.head();
            let bytes = self.buffer.pad(region, offset, halted);
            self.ring.written(Written::Exactly(bytes));
            self.gaps.carry(end, self.ring.head());
        }
    }
}

impl<M: Msr, F: Frames> Sealed for PtSession<M, F> {}

impl<M: Msr, F: Frames> Recording for PtSession<M, F> {
    type Unit = PtUnit<M>;
    type Memory = Buffer<F>;
    type Stopped = PtStopped<M, F>;
    type Refusal = PtRefusal;

    const WRITES_MEMORY: bool = true;

    /// Starts a trace from the beginning of the buffer.
    fn begin(&mut self) -> Result<(), StartError<PtRefusal>> {
        self.unit.claim()?;
        self.found = Some(Found::read(&mut self.unit, &self.checked)?);
        if self.buffer.mode() != Mode::Overwrite {
            // A request that an earlier trace left would be treated as this trace's.
            self.unit.write(GlobalStatusReset(GlobalStatus::TRACE_TOPA_PMI))?;
        }
        let halted = Halted::halt(self)?;
        self.buffer.reset(&halted);
        self.arm(&halted)?;
        match self.enable(halted)? {
            None => Ok(()),
            Some(error) => Err(StartError::Refused(PtRefusal::Memory(error))),
        }
    }

    /// Clears TraceEn: then all packets are in memory, up to the position in the output registers.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        if self.on {
            self.turn_off()?;
            // The write has flushed the packets, and this makes them globally observed: see `memory`.
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    fn finish(&mut self, halted: &Halted) -> Result<(), GeneralProtection> {
        self.collect(false, halted).inspect_err(|&fault| self.leave_off(Abandoned::Fault(fault)))
    }

    /// Restores the registers. One that cannot be restored names memory that was this trace's, but TraceEn is 0:
    /// nothing sets it without writing or reading the others.
    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        let _ = self.put_back();
        Ok(())
    }

    fn abandon(&mut self, why: Abandoned) {
        self.leave_off(why);
    }

    fn into_stopped(self) -> PtStopped<M, F> {
        let Self { unit, buffer, ring, gaps, loss, error, .. } = self;
        PtStopped { unit, trace: Trace::new(buffer, ring, gaps), loss, error }
    }

    fn into_parts(self) -> (PtUnit<M>, Buffer<F>) {
        (self.unit, self.buffer)
    }
}
