//! The progress of the recording of one half, and its losses.

use super::BufferMode;
use super::buffer::{BadIndex, RecordBuffer};
use super::memory::LinearMemory;
use crate::drain::{Chunk, Sink};
use crate::loss::{Gap, Loss, Overwritten};
use crate::pmi::Abandoned;

/// The state of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DsState {
    /// The half records.
    Recording,
    /// The buffer is full and the sink took nothing: recording resumes once records are drained.
    Full,
    /// The half is off until [`DsRunning::resume`](super::DsRunning::resume).
    Suspended,
    /// Another owner uses a unit that excludes this half: PT, last branch records, or BTS. Once that ends, recording
    /// resumes at the next drain, at the end of a PMI, or at [`DsRunning::resume`](super::DsRunning::resume).
    Excluded,
    /// The index is not in the buffer: other code wrote to the area. The half is off.
    Failed(BadIndex),
    /// The half is off because the PMI handler gave up, or a call reported a fault. It resumes at the next drain, at
    /// the end of the next PMI, or at [`DsRunning::resume`](super::DsRunning::resume).
    Abandoned(Abandoned),
}

/// The progress of the recording of one half.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    loss: Loss,
    state: DsState,
    /// True if the half may have recorded since the index was last read.
    unread: bool,
    /// The size of the records in the buffer; in a circular buffer, the offset of the next record.
    filled: u64,
    /// The gap after the last record.
    cut: Option<Gap>,
    /// A gap between records, with its offset. A circular buffer has none: its losses are counted.
    gap: Option<(u64, Gap)>,
    /// True if the half could resume, but another owner excludes it.
    excluded: bool,
    /// The reason why the driver left the half off, until the half resumes.
    abandoned: Option<Abandoned>,
    /// True if something else turned the half off, which is not reported yet.
    turned_off: bool,
    /// True if the half is off until [`Progress::wake`], even if nothing else keeps it off.
    suspended: bool,
}

impl Progress {
    /// Returns the state of an empty buffer.
    pub(super) const fn new() -> Self {
        Self {
            loss: Loss::NONE,
            state: DsState::Recording,
            unread: false,
            filled: 0,
            cut: None,
            gap: None,
            excluded: false,
            abandoned: None,
            turned_off: false,
            suspended: false,
        }
    }

    pub(super) const fn loss(&self) -> &Loss {
        &self.loss
    }

    /// Returns the count of samples whose records were never stored.
    pub(super) const fn lost_samples(&mut self) -> &mut u64 {
        &mut self.loss.samples
    }

    pub(super) fn state(&self) -> DsState {
        match (self.state, self.abandoned) {
            (DsState::Recording | DsState::Full, _) if self.suspended => DsState::Suspended,
            (DsState::Recording, _) if self.excluded => DsState::Excluded,
            (DsState::Recording, Some(why)) => DsState::Abandoned(why),
            (state, _) => state,
        }
    }

    /// Notes that the processor records from now on.
    pub(super) fn begin<L: LinearMemory>(&mut self, buffer: &RecordBuffer<L>) {
        self.unread = true;
        if let Some(gap) = self.cut.take().filter(|_| buffer.mode() != BufferMode::Circular) {
            self.gap = Some((self.filled, gap));
        }
        self.excluded = false;
        self.abandoned = None;
    }

    /// Notes that the half could resume, but another owner's recording excludes it.
    pub(super) fn exclude(&mut self) {
        self.loss.excluded += u64::from(!self.excluded);
        if !core::mem::replace(&mut self.excluded, true) {
            self.miss(Gap::Excluded);
        }
    }

    /// Notes that the driver leaves the half off until it is resumed. A half that is off for another reason keeps that
    /// reason.
    pub(super) fn abandon(&mut self, why: Abandoned) {
        if self.state() == DsState::Recording {
            self.abandoned = Some(why);
            self.loss.abandoned += 1;
            self.miss(Gap::Abandoned);
        }
    }

    /// Notes that something else turned the half off while it recorded: the next [`Progress::collect`] reports this.
    pub(super) const fn turn_off(&mut self) {
        self.turned_off = true;
    }

    /// Notes that records are missing from here on. Of several reasons the first one is kept.
    fn miss(&mut self, gap: Gap) {
        if self.gap.is_none_or(|(at, _)| at != self.filled) {
            self.cut.get_or_insert(gap);
        }
    }

    /// Returns whether the index is at the threshold, so that it must be served. May be called while the processor
    /// records.
    pub(super) fn is_due<L: LinearMemory>(&self, buffer: &RecordBuffer<L>) -> bool {
        let records = self.state == DsState::Recording && !self.suspended;
        buffer.mode() != BufferMode::Circular && records && buffer.is_due()
    }

    /// Reads the processor's index. The recording must be off.
    pub(super) fn collect<L: LinearMemory>(&mut self, buffer: &RecordBuffer<L>) {
        if !self.unread {
            return;
        }
        self.unread = false;
        let turned_off = core::mem::take(&mut self.turned_off);
        self.loss.turned_off += u64::from(turned_off);
        match buffer.filled() {
            Ok(filled) => self.filled = filled,
            Err(bad) => {
                self.loss.error += 1;
                self.state = DsState::Failed(bad);
                self.cut = Some(Gap::Error);
                return;
            }
        }
        match buffer.mode() {
            BufferMode::Circular => {
                let lost = buffer.went_round().then(|| self.overwritten(buffer));
                self.loss.perhaps_wrapped = u64::from(lost == Some(Overwritten::Perhaps));
                self.loss.wrap = u64::from(lost.is_some()) - self.loss.perhaps_wrapped;
            }
            BufferMode::Interrupt { .. } if buffer.is_full() => {
                self.loss.stop += 1;
                self.cut = Some(Gap::Stop);
            }
            BufferMode::Interrupt { .. } => {}
        }
        if turned_off {
            self.miss(Gap::TurnedOff);
        }
    }

    /// Offers the complete records to `sink`, as far as the sink takes them. A circular buffer is only shown and keeps
    /// all records. The recording must be off.
    pub(super) fn deliver<L: LinearMemory>(
        &mut self,
        buffer: &mut RecordBuffer<L>,
        sink: &mut (impl Sink + ?Sized),
    ) {
        if buffer.mode() == BufferMode::Circular {
            return self.show(buffer, sink);
        }
        let mut all = true;
        if let Some((at, gap)) = self.gap {
            all = self.hand_over(buffer, at, sink) && sink.gap(gap);
            if all {
                self.gap = None;
            }
        }
        all = all && self.hand_over(buffer, self.filled, sink);
        if self.cut.filter(|_| all).is_some_and(|gap| sink.gap(gap)) {
            self.cut = None;
        }
    }

    /// Offers the complete records before `end` to `sink`, and removes those that it takes. Returns whether it takes
    /// all.
    fn hand_over<L: LinearMemory>(
        &mut self,
        buffer: &mut RecordBuffer<L>,
        end: u64,
        sink: &mut (impl Sink + ?Sized),
    ) -> bool {
        let records = buffer.records(0, end);
        let done = match records.is_empty() {
            true => 0,
            false => sink.bytes(records).min(records.len()) as u64,
        };
        let done = done - done % buffer.record_bytes();
        if done > 0 {
            buffer.consume(done, self.filled);
            self.filled -= done;
            self.gap = self.gap.map(|(at, gap)| (at - done, gap));
        }
        done == end
    }

    /// Returns whether the half may resume: it is not suspended or failed, and there is room.
    pub(super) fn may_go_on<L: LinearMemory>(&mut self, buffer: &RecordBuffer<L>) -> bool {
        if self.suspended || matches!(self.state, DsState::Failed(_)) {
            return false;
        }
        // Only one gap between records can be noted.
        let no_room = buffer.is_due() || self.cut.is_some() && self.gap.is_some();
        let waits = buffer.mode() != BufferMode::Circular && no_room;
        if waits && self.state != DsState::Full {
            self.loss.full += 1;
            self.miss(Gap::Full);
        }
        self.state = if waits { DsState::Full } else { DsState::Recording };
        !waits
    }

    /// Keeps the half off until [`Progress::wake`].
    pub(super) const fn suspend(&mut self) {
        self.suspended = true;
    }

    /// Lets the half resume again.
    pub(super) const fn wake(&mut self) {
        self.suspended = false;
    }

    /// Returns the content of the buffer, oldest first. The recording must be off.
    pub(super) fn chunks<'a, L: LinearMemory>(
        &self,
        buffer: &'a RecordBuffer<L>,
    ) -> impl Iterator<Item = Chunk<'a>> + use<'a, L> {
        let round = buffer.mode() == BufferMode::Circular && buffer.went_round();
        let wrap = round.then(|| Chunk::Gap(Gap::Wrap(self.overwritten(buffer))));
        let older = round.then(|| Chunk::Bytes(buffer.records(self.filled, buffer.end())));
        let at = self.gap.map_or(0, |(at, _)| at);
        let before = self.gap.map(|_| Chunk::Bytes(buffer.records(0, at)));
        let gap = self.gap.map(|(_, gap)| Chunk::Gap(gap));
        let newer = Some(Chunk::Bytes(buffer.records(at, self.filled)));
        let some = |chunk: &Chunk<'_>| !matches!(chunk, Chunk::Bytes([]));
        [wrap, older, before, gap, newer, self.cut.map(Chunk::Gap)].into_iter().flatten().filter(some)
    }

    /// Returns the minimum that a circular buffer has overwritten after a wrap: the records between its base and the
    /// place of the next record. If that place is the end, it is unknown whether others were overwritten.
    const fn overwritten<L: LinearMemory>(&self, buffer: &RecordBuffer<L>) -> Overwritten {
        Overwritten::at_least(self.filled % buffer.end())
    }

    fn show<L: LinearMemory>(&self, buffer: &RecordBuffer<L>, sink: &mut (impl Sink + ?Sized)) {
        for chunk in self.chunks(buffer) {
            let goes_on = match chunk {
                Chunk::Gap(gap) => sink.gap(gap),
                Chunk::Bytes(bytes) => sink.bytes(bytes) >= bytes.len(),
            };
            if !goes_on {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_counted_once_and_the_first_one_is_told() {
        let losses = |abandoned, excluded| Loss { abandoned, excluded, ..Loss::NONE };
        let mut progress = Progress::new();
        assert_eq!((progress.state(), *progress.loss()), (DsState::Recording, Loss::NONE));
        for _ in 0..3 {
            progress.abandon(Abandoned::Stuck);
            assert_eq!((*progress.loss(), progress.cut), (losses(1, 0), Some(Gap::Abandoned)));
            assert_eq!(progress.state(), DsState::Abandoned(Abandoned::Stuck));
        }
        for _ in 0..3 {
            progress.exclude();
            assert_eq!((*progress.loss(), progress.cut), (losses(1, 1), Some(Gap::Abandoned)));
            assert_eq!(progress.state(), DsState::Excluded);
        }
        progress.suspend();
        assert_eq!(progress.state(), DsState::Suspended);
        progress.wake();
        assert_eq!(progress.state(), DsState::Excluded);
        // A half that is excluded already is not abandoned as well.
        let mut progress = Progress::new();
        progress.exclude();
        progress.abandon(Abandoned::Stuck);
        assert_eq!((*progress.loss(), progress.cut), (losses(0, 1), Some(Gap::Excluded)));
    }
}
