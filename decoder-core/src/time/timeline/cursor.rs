//! A place in the trace, and the evidence about its time from the packets on both sides.

use super::{
    CoreSpeed, Doubt,
    anchor::{Anchor, Anchors, Stretch},
    line::Line,
    reader::Reader,
};
use crate::packet::{
    Cyc, Packet,
    cycles::{Passed, PassedCyc},
};

/// The fraction of a tick in which guesses are summed up.
const GUESS: u64 = 256;

/// The bounds of time at one place of the trace, from the packets around it, as places on the [`Line`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) least: u64,
    pub(super) most: Option<u64>,
    pub(super) nominal: u64,
    pub(super) doubt: Option<Doubt>,
    pub(super) confirmed: bool,
}

/// A reader that moves forward through a trace.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    /// The anchors, read one ahead.
    anchors: Anchors<'a>,
    /// The last anchor before `position`.
    after: Option<Anchor>,
    /// The next anchor.
    ahead: Option<Anchor>,
    /// The reader, at `position` or one packet further.
    reader: Reader<'a>,
    /// A packet that was read but not counted, and its offset, which is not before `position`. At the end of the trace
    /// the offset is the maximum.
    pending: Option<(u64, Packet)>,
    /// The CYC packets after `position`, if the speed is known and they narrow the bounds.
    coming: Option<Coming<'a>>,
    /// The offset before which all packets are taken into account.
    position: u64,
    cycles: Cycles,
    /// A number of TSC ticks, and the number of core cycles in the same time.
    ratio: Option<(u64, u64)>,
    speed: Option<CoreSpeed>,
}

/// A reader that looks ahead to the next CYC packet.
#[derive(Clone, Debug)]
struct Coming<'a> {
    reader: Reader<'a>,
    next: Option<PassedCyc>,
    /// The offset of the last OVF packet that was read: cycles were lost there.
    overflow: u64,
}

impl<'a> Coming<'a> {
    fn new(reader: Reader<'a>) -> Self {
        let mut coming = Self { reader, next: None, overflow: 0 };
        coming.fetch();
        coming
    }

    fn advance(&mut self, offset: u64) {
        while self.next.is_some_and(|cyc| cyc.offset < offset) {
            self.fetch();
        }
    }

    fn fetch(&mut self) {
        self.next = loop {
            let Some((offset, packet)) = self.reader.next() else { break None };
            match packet {
                Packet::Cyc(Cyc { cycles }) => {
                    break Some(PassedCyc { offset, end: self.reader.offset(), cycles });
                }
                Packet::Ovf => self.overflow = offset,
                _ => {}
            }
        };
    }
}

/// The core cycles since an anchor.
#[derive(Clone, Copy, Debug, Default)]
struct Cycles {
    /// The cycles of all CYC packets; the first may have begun to count before the anchor.
    all: u64,
    /// The cycles that are certainly after the anchor.
    sure: u64,
    /// True if the next CYC packet counts from the anchor or from a later time.
    counting: bool,
    /// The end of the last CYC packet.
    end: u64,
    /// The cycles since the ratio changed.
    unguessed: u64,
    /// The cycles before that, converted to ticks by the ratios known so far, in units of 1 / [`GUESS`] tick.
    guess: u64,
}

impl Cycles {
    fn add(&mut self, cycles: u64, end: u64) {
        self.all = self.all.saturating_add(cycles);
        self.unguessed = self.unguessed.saturating_add(cycles);
        if core::mem::replace(&mut self.counting, true) {
            self.sure = self.sure.saturating_add(cycles);
        }
        self.end = end;
    }

    /// Returns all cycles converted to ticks, in units of 1 / [`GUESS`] tick.
    fn guessed(&self, ratio: Option<(u64, u64)>) -> u64 {
        let Some((ticks, cycles)) = ratio else { return self.guess };
        self.guess.saturating_add(scale(self.unguessed, ticks.saturating_mul(GUESS), cycles))
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn new(
        reader: Reader<'a>,
        adjust_is_known: bool,
        speed: Option<CoreSpeed>,
        line: Line,
    ) -> Self {
        let mut anchors = Anchors::new(reader.clone(), adjust_is_known, line);
        Self {
            ahead: anchors.next(),
            anchors,
            after: None,
            coming: speed.map(|_| Coming::new(reader.clone())),
            reader,
            pending: None,
            position: 0,
            cycles: Cycles::default(),
            ratio: None,
            speed,
        }
    }

    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    pub(super) const fn line(&self) -> Line {
        self.anchors.line()
    }

    /// Advances to `offset`: takes into account all packets that begin before it.
    pub(super) fn advance(&mut self, offset: u64) {
        while let Some(anchor) = self.ahead.filter(|anchor| anchor.offset < offset) {
            self.count(anchor.offset);
            self.pass(anchor);
        }
        self.count(offset);
        self.position = offset;
        if let Some(coming) = &mut self.coming {
            coming.advance(offset);
        }
    }

    /// Counts the cycles of the CYC packets that begin before `offset`.
    fn count(&mut self, offset: u64) {
        loop {
            if let Some((at, packet)) = self.pending {
                if at >= offset {
                    return;
                }
                self.pending = None;
                match packet {
                    Packet::Cyc(cyc) => self.cycles.add(cyc.cycles, self.reader.offset()),
                    Packet::Cbr(cbr) => self.cbr(cbr.ratio),
                    _ => {}
                }
            }
            // The first CYC packet after an anchor may count from before the anchor, so it is counted separately.
            if self.cycles.counting {
                let Passed { cycles, last, .. } = self.reader.pass_cycles(offset);
                if let Some(last) = last {
                    self.cycles.add(cycles, last.end);
                }
            }
            if self.reader.offset() >= offset {
                return;
            }
            self.pending = Some(self.reader.next().unwrap_or((u64::MAX, Packet::Pad)));
        }
    }

    /// Applies a core to bus ratio to the CYC packets after it. In a PSB+ it only repeats the known ratio.
    fn cbr(&mut self, ratio: u8) {
        let nominal = self.reader.clocks().nom_freq;
        if !self.reader.in_psb() || self.ratio.is_none() {
            self.cycles.guess = self.cycles.guessed(self.ratio);
            self.cycles.unguessed = 0;
            self.ratio = (ratio != 0 && nominal != 0).then_some((nominal.into(), ratio.into()));
        }
    }

    /// Moves past the next anchor.
    fn pass(&mut self, mut anchor: Anchor) {
        if let Some(after) = self.after {
            if !anchor.is_tsc {
                // The TSC packet before an MTC may give a later bound than the MTC itself.
                anchor.least = anchor.least.max(self.least(&after));
            }
            let is_known = !anchor.since.broken && !after.stretch.is_blind() && anchor.since.cycles > 0;
            if is_known && anchor.nominal > after.nominal {
                self.ratio = Some((anchor.nominal - after.nominal, anchor.since.cycles));
            }
        }
        let counting = anchor.since.adjacent.is_some();
        self.cycles = Cycles { counting, end: self.cycles.end, ..Cycles::default() };
        self.after = Some(anchor);
        self.ahead = self.anchors.next();
    }

    /// Returns the bounds of time at this place; `None` before the first TSC packet.
    ///
    /// With `is_exact`, the bounds are for the time at which the packet here was generated. A CYC packet right before
    /// it gives that time.
    pub(super) fn point(&self, is_exact: bool) -> Option<Point> {
        let after = self.after?;
        let Stretch { doubt, confirmed, .. } = after.stretch;
        let (mut least, mut most) = (self.least(&after), self.most(&after, is_exact));
        if doubt == Some(Doubt::Contradiction) {
            // The TSC changed at an unknown place between the two anchors.
            least = least.min(self.ahead.map_or(least, |ahead| ahead.least));
            most = most.map(|most| most.max(after.nominal));
        }
        let most = most.map(|most| most.max(least));
        let nominal = self.nominal(&after).max(least);
        let nominal = most.map_or(nominal, |most| nominal.min(most));
        Some(Point { least, most, nominal, doubt, confirmed })
    }

    fn least(&self, after: &Anchor) -> u64 {
        match self.speed {
            Some(speed) if !after.stretch.is_blind() => {
                after.least.saturating_add(speed.least_ticks(self.cycles.sure))
            }
            _ => after.least,
        }
    }

    fn most(&self, after: &Anchor, is_exact: bool) -> Option<u64> {
        let ahead = self.ahead.as_ref().and_then(|ahead| Some((ahead, ahead.most?)));
        let Some(speed) = self.speed.filter(|_| !after.stretch.is_blind()) else {
            return ahead.map(|(_, most)| most);
        };
        let by_ahead =
            ahead.map(|(ahead, most)| most.saturating_sub(speed.least_ticks(self.sure_ahead(ahead))));
        let by_after = after
            .most
            .zip(self.most_cycles(after, is_exact))
            .map(|(most, cycles)| most.saturating_add(speed.most_ticks(cycles)));
        let most = match (by_ahead, by_after) {
            (Some(ahead), Some(after)) => ahead.min(after),
            (one, other) => one.or(other)?,
        };
        // A later place has no earlier bound, even if the next TSC packet gives a lower one than the previous MTC.
        Some(most.max(after.most.unwrap_or(0)))
    }

    /// Returns the next CYC packet, if it is before the next anchor.
    fn next_cyc(&self) -> Option<PassedCyc> {
        let next = self.coming.as_ref().and_then(|coming| coming.next);
        next.filter(|cyc| self.ahead.is_none_or(|ahead| cyc.offset < ahead.offset))
    }

    /// Returns the number of cycles that are certainly between here and the next anchor.
    fn sure_ahead(&self, ahead: &Anchor) -> u64 {
        match self.next_cyc() {
            // The next CYC packet also counts cycles from before this place. The CYC packet of an MTC may be later than
            // the MTC's edge.
            Some(cyc) if Some(cyc.offset) != ahead.since.last_cyc => {
                let late = if ahead.is_tsc { 0 } else { ahead.since.adjacent.unwrap_or(0) };
                let passed = self.cycles.all.saturating_add(cyc.cycles);
                ahead.since.cycles.saturating_sub(passed).saturating_sub(late)
            }
            _ => 0,
        }
    }

    /// Returns the maximum number of cycles between the last anchor and this place; `None` if cycles may have been lost
    /// or the core clock may have stopped.
    fn most_cycles(&self, after: &Anchor, is_exact: bool) -> Option<u64> {
        if self.coming.as_ref().is_some_and(|coming| coming.overflow > after.offset) {
            return None;
        }
        // The CYC packet of an MTC may be later than the MTC's edge.
        let late = if after.is_tsc { 0 } else { after.since.adjacent.unwrap_or(0) };
        let passed = self.cycles.all.saturating_add(late);
        if is_exact && self.cycles.end == self.position && self.cycles.all > 0 {
            return Some(passed);
        }
        let cyc = self.next_cyc()?;
        // If the core clock stopped, the next CYC packet comes together with a TSC packet.
        let with_tsc = match &self.ahead {
            Some(ahead) => {
                ahead.is_tsc && ahead.since.adjacent.is_some() && ahead.since.last_cyc == Some(cyc.offset)
            }
            None => self.reader.packet_at(cyc.end).is_none(),
        };
        (!with_tsc).then_some(passed.saturating_add(cyc.cycles))
    }

    /// Returns the most likely time at this place.
    fn nominal(&self, after: &Anchor) -> u64 {
        let all = self.cycles.all;
        let guess = || self.cycles.guessed(self.ratio) / GUESS;
        let Some(ahead) = &self.ahead else {
            return after.nominal.saturating_add(guess());
        };
        let between = ahead.nominal.saturating_sub(after.nominal);
        let total = ahead.since.cycles;
        let passed = match (total, self.ratio) {
            // The ticks from an MTC to the middle of its period.
            (0, _) if ahead.since.broken && after.half_period > 0 => after.half_period.min(between / 2),
            // Nothing says when the branches between them were executed: as if each byte had taken equally long.
            (0, _) => scale(between, self.position.saturating_sub(after.offset), ahead.offset - after.offset),
            // A clock stood still between the anchors, probably after the last cycle.
            (_, Some(_)) if ahead.since.broken => guess().min(between),
            _ => scale(between, all.min(total), total),
        };
        after.nominal.saturating_add(passed)
    }
}

/// Returns `value · numerator / denominator`, with a non-zero denominator.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    // A division of 128 bits takes several times as long.
    if let Some(product) = value.checked_mul(numerator) {
        return product / denominator;
    }
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
