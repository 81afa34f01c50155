//! Bounds of time for every place in a trace.
//!
//! A [`Timeline`] reads the timing packets on both sides of a place. `reader` supplies the packets, `anchor` selects
//! those that bound the time (TSC and MTC packets), `edges` converts MTC payloads to TSC ticks, `line` extends the 56
//! bits of a TSC packet, and `cursor` combines all of these with the cycle counts of the CYC packets.

mod anchor;
mod cursor;
mod edges;
mod line;
mod reader;
mod speed;
#[cfg(test)]
mod tests;

pub use speed::CoreSpeed;

use crate::{
    config::{Clocks, Config},
    packet::{Packet, Packets},
};
use cursor::{Cursor, Point};
use line::Line;
use reader::Reader;

/// The two packets between which something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// The offset of a packet that was generated before it happened, or at that time.
    pub after: u64,
    /// The offset of a packet that was generated after it happened, or at that time.
    pub before: u64,
}

impl Span {
    /// Returns the span of the packet at `offset` itself.
    #[must_use]
    pub const fn at(offset: u64) -> Self {
        Self { after: offset, before: offset }
    }
}

/// The time of something, in TSC values.
///
/// They have 64 bits and wrap around at 2^64, as the TSC does. [`contains`](Self::contains) and
/// [`error`](Self::error) take that into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moment {
    /// The lower bound of the time.
    pub earliest: u64,
    /// The upper bound of the time; `None` if the trace ends without a packet that bounds it.
    pub latest: Option<u64>,
    /// The most likely time of the packet that precedes the span, the one at [`Span::after`].
    pub from: u64,
    /// The most likely time of the packet that follows the span, the one at [`Span::before`].
    pub to: u64,
    /// The reason why the time may be wrong.
    pub doubt: Option<Doubt>,
    /// True if a later TSC packet checked the time. At the end of a trace there is none.
    pub confirmed: bool,
}

/// The reason why the time is uncertain in a stretch between two TSC packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Doubt {
    /// MTC packets are missing, and enough consecutive ones that their payload may have wrapped around. The bounds are
    /// wide enough for that.
    MtcLost,
    /// The TSC is not invariant and may have stood still in a deep C-state. The bounds hold and come only from the TSC
    /// packets, but TSC ticks do not measure time here.
    TscStopped,
    /// The packets contradict each other: software wrote the TSC, a VM changed it, or the configured clocks are not
    /// those of the processor. The bounds come from the TSC packets and hold only if the TSC was written once.
    Contradiction,
}

impl Moment {
    /// Returns the most likely TSC: the middle between [`from`](Self::from) and [`to`](Self::to).
    #[must_use]
    pub const fn tsc(&self) -> u64 {
        self.part(1, 2)
    }

    /// Returns the maximum error of [`tsc`](Self::tsc), in ticks; `None` if there is no upper bound.
    #[must_use]
    pub fn error(&self) -> Option<u64> {
        let tsc = self.tsc();
        Some(tsc.wrapping_sub(self.earliest).max(self.latest?.wrapping_sub(tsc)))
    }

    /// Returns true if the bounds allow this TSC.
    #[must_use]
    pub fn contains(&self, tsc: u64) -> bool {
        let after = tsc.wrapping_sub(self.earliest);
        self.latest.map_or(after < 1 << 63, |latest| after <= latest.wrapping_sub(self.earliest))
    }

    /// Returns the TSC of one of `count` consecutively executed instructions in this span, if all of them took equally
    /// long. The first one has `index` 0.
    ///
    /// This is a guess that no packet supports: of ten instructions, the third may have taken all the time. The guess
    /// is within the bounds, and later for later instructions.
    #[must_use]
    pub const fn interpolated(&self, index: u64, count: u64) -> u64 {
        if count == 0 { self.tsc() } else { self.part(index.saturating_add(1), count) }
    }

    const fn part(&self, part: u64, of: u64) -> u64 {
        let part = if part < of { part } else { of };
        let between = self.to.wrapping_sub(self.from) as u128;
        self.from.wrapping_add((between * part as u128 / of as u128) as u64)
    }
}

/// A place in the trace at which the clocks change.
///
/// IA32_RTIT_CTL.MTCFreq and IA32_TSC_ADJUST can change between two recordings that share a buffer, and no packet
/// reports the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockChange {
    /// The offset of the first packet to which the new clocks apply.
    pub offset: u64,
    /// The clocks from there on.
    pub clocks: Clocks,
}

/// The times of spans of a trace, in any order of the spans. The order of the trace is fastest.
///
/// The timeline reads the trace itself, some packets ahead, and only around the spans that are queried.
#[derive(Clone, Debug)]
pub struct Timeline<'a> {
    start: Reader<'a>,
    speed: Option<CoreSpeed>,
    adjust_is_known: bool,
    near: Option<u64>,
    /// The cursors at the two ends of the last span, if there was one.
    ends: Option<Ends<'a>>,
}

impl<'a> Timeline<'a> {
    /// Creates the timeline of a trace whose [clocks](Config::clocks) are given in `config`.
    #[must_use]
    pub fn new(trace: &'a [u8], config: Config<'a>) -> Self {
        let mut packets = Packets::with_config(trace, config);
        if packets.sync_forward().is_none() {
            packets.set_offset(u64::MAX);
        }
        let start = Reader::new(packets);
        Self { start, speed: None, adjust_is_known: false, near: None, ends: None }
    }

    /// Narrows the bounds by CYC packets too.
    #[must_use]
    pub fn with_speed(mut self, speed: CoreSpeed) -> Self {
        self.speed = Some(speed);
        self
    }

    /// Switches to other clocks at some offsets. `changes` must be in order of the offsets.
    #[must_use]
    pub fn with_changes(mut self, changes: &'a [ClockChange]) -> Self {
        self.start = self.start.with_changes(changes);
        self
    }

    /// Relies on [`tsc_adjust`](Clocks::tsc_adjust) to align the clocks if a TSC packet has no TMA packet after it.
    #[must_use]
    pub fn with_known_adjust(mut self) -> Self {
        self.adjust_is_known = true;
        self
    }

    /// Sets a TSC value that was read at most 2^55 ticks before or after the first TSC packet: it supplies the upper
    /// eight bits, which packets lack. Without it they are treated as zero.
    #[must_use]
    pub fn with_tsc_near(mut self, tsc: u64) -> Self {
        self.near = Some(tsc);
        self
    }

    /// Returns the time between two packets; `None` if no TSC packet precedes them.
    pub fn moment(&mut self, Span { after, before }: Span) -> Option<Moment> {
        // The cursors stay in place: two of them are a thousand bytes to copy.
        if self.ends.as_ref().is_none_or(|ends| ends.after.position() > after) {
            let (reader, line) = match &self.ends {
                Some(ends) => (self.start.before(after), ends.before.line()),
                None => (self.start.clone(), Line::new(self.near)),
            };
            let mut cursor = Cursor::new(reader, self.adjust_is_known, self.speed, line);
            // Results for earlier places would depend on packets that the cursor has not read.
            cursor.advance(after);
            self.ends = Some(Ends::both(cursor));
        }
        let ends = self.ends.as_mut()?;
        ends.begin_at(after);
        // Without limits of the core clock, exactness makes no difference.
        let is_exact = self.speed.is_some()
            && after < before
            && self.start.packet_at(before).is_some_and(|packet| is_branch(&packet));
        ends.end_at(before.max(after), is_exact);
        Some(between(ends.from.point.as_ref()?, ends.to.point.as_ref()?, ends.before.line()))
    }
}

/// The two ends of the last span.
#[derive(Clone, Debug)]
struct Ends<'a> {
    /// The cursor at the start of the span, or before it.
    after: Cursor<'a>,
    /// The cursor at the end of the span.
    before: Cursor<'a>,
    from: End,
    to: End,
}

/// An end of the last span.
#[derive(Clone, Copy, Debug)]
struct End {
    offset: u64,
    is_exact: bool,
    point: Option<Point>,
}

impl End {
    fn of(cursor: &Cursor<'_>, is_exact: bool) -> Self {
        Self { offset: cursor.position(), is_exact, point: cursor.point(is_exact) }
    }

    const fn is(&self, offset: u64, is_exact: bool) -> bool {
        self.offset == offset && self.is_exact == is_exact
    }
}

impl<'a> Ends<'a> {
    fn both(cursor: Cursor<'a>) -> Self {
        let end = End::of(&cursor, false);
        Self { after: cursor.clone(), before: cursor, from: end, to: end }
    }

    /// Moves the start of the span to this offset, which is not before the cursor `after`.
    fn begin_at(&mut self, offset: u64) {
        if self.from.is(offset, false) {
            return;
        }
        // Spans mostly follow one another: the next one begins at the end of the last one, or later.
        if self.to.is(offset, false) {
            self.from = self.to;
            return;
        }
        let cursor = if self.before.position() <= offset { &mut self.before } else { &mut self.after };
        cursor.advance(offset);
        self.from = End::of(cursor, false);
    }

    /// Moves the end of the span to this offset, which is not before its start.
    fn end_at(&mut self, offset: u64, is_exact: bool) {
        if self.to.is(offset, is_exact) {
            return;
        }
        if self.before.position() > offset {
            self.before.clone_from(&self.after);
        }
        self.before.advance(offset);
        self.to = End::of(&self.before, is_exact);
    }
}

/// Returns true for packets that report branches: a CYC packet right before one gives that packet's time.
const fn is_branch(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::TntShort(_) | Packet::TntLong(_) | Packet::Tip(_) | Packet::TipPge(_) | Packet::TipPgd(_)
    )
}

/// Returns the moment of something that happened between two points.
fn between(from: &Point, to: &Point, line: Line) -> Moment {
    // A CYC packet right before `to` may have shown that `from` was earlier than assumed.
    let nominal = from.nominal.min(to.nominal);
    let mut moment = Moment {
        earliest: line.tsc(from.least),
        latest: to.most.map(|most| line.tsc(most)),
        from: line.tsc(nominal),
        to: line.tsc(to.nominal),
        doubt: from.doubt.or(to.doubt),
        confirmed: from.confirmed && to.confirmed,
    };
    if nominal < from.least || to.most.is_some_and(|most| most < from.least) {
        // The TSC went back between the two, at an unknown time.
        moment.earliest = line.tsc(from.least.min(to.least));
        moment.latest = from.most.zip(to.most).map(|(from, to)| line.tsc(from.max(to)));
        moment.doubt = Some(Doubt::Contradiction);
    }
    moment
}
