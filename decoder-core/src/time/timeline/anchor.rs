//! Anchors, the packets that bound the time: TSC packets, and MTC packets that can be trusted.
//!
//! Each TSC packet begins a stretch that lasts until the next one. The packets of a stretch are read twice: first
//! ahead, to check the MTC packets against the TSC packet at the end, then one by one as anchors.

use super::{
    Doubt,
    edges::{Edge, Edges},
    line::Line,
    reader::Reader,
};
use crate::packet::{Packet, Tma, Tsc, cycles::Passed};

/// A packet with a time, given as places on the [`Line`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    /// The offset of the packet's first byte.
    pub(super) offset: u64,
    /// The lower bound: everything after the packet happened at this time or later.
    pub(super) least: u64,
    /// The upper bound: everything before the packet happened at this time or earlier; `None` without a bound.
    pub(super) most: Option<u64>,
    /// The most likely time of the packet.
    pub(super) nominal: u64,
    /// True for a TSC packet.
    pub(super) is_tsc: bool,
    /// Half of the usual number of ticks until the next MTC packet; 0 if unknown.
    pub(super) half_period: u64,
    /// The packets between the previous anchor and this one.
    pub(super) since: Since,
    /// The stretch from here to the next TSC packet.
    pub(super) stretch: Stretch,
}

/// A summary of the packets between two anchors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Since {
    /// The cycles of all CYC packets.
    pub(super) cycles: u64,
    /// The cycles of the CYC packet directly before the second anchor, if there is one.
    pub(super) adjacent: Option<u64>,
    /// The offset of the last CYC packet.
    pub(super) last_cyc: Option<u64>,
    /// True if a clock may have stood still, or packets were lost.
    pub(super) broken: bool,
}

impl Since {
    /// Adds packets that were passed.
    fn pass(&mut self, passed: Passed) {
        self.cycles = self.cycles.saturating_add(passed.cycles);
        if let Some(cyc) = passed.last {
            (self.adjacent, self.last_cyc) = (Some(cyc.cycles), Some(cyc.offset));
        }
        if passed.ends_with_branch {
            self.adjacent = None;
        }
    }
}

/// The properties of the time between two TSC packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stretch {
    /// The reason why time is less certain than the packets show.
    pub(super) doubt: Option<Doubt>,
    /// True if there is a TSC packet at the end, and it was taken into account.
    pub(super) confirmed: bool,
    /// The number of ticks by which an MTC may be later than computed.
    slack: u64,
    /// The number of ticks by which each MTC is earlier than computed.
    early: u64,
    /// The ticks by which an MTC may be later than its earliest time if the crystal clock is not aligned to the TSC.
    room: Option<u64>,
    /// The TSC packet at the end.
    end: Option<u64>,
}

impl Stretch {
    /// Returns true if the TSC cannot be derived from MTC and CYC packets.
    pub(super) const fn is_blind(&self) -> bool {
        matches!(self.doubt, Some(Doubt::TscStopped | Doubt::Contradiction))
    }
}

/// The stop of clocks before a TSC packet.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// True if the core clock was stopped, as the TSC then was if it is not invariant.
    slept: bool,
    /// True if the pause explains the absence of MTC packets. Otherwise, or after an overflow, some are missing.
    explains: bool,
}

/// An iterator over the anchors of a trace, from the first TSC packet on.
#[derive(Clone, Debug)]
pub(super) struct Anchors<'a> {
    reader: Reader<'a>,
    adjust_is_known: bool,
    line: Line,
    /// The crystal clock since the last TSC packet.
    edges: Option<Edges>,
    stretch: Stretch,
    /// True if packets were lost since the last TSC packet.
    lossy: bool,
    /// The nominal time of the last anchor.
    last: u64,
}

impl<'a> Anchors<'a> {
    pub(super) fn new(reader: Reader<'a>, adjust_is_known: bool, line: Line) -> Self {
        Self {
            reader,
            adjust_is_known,
            line,
            edges: None,
            stretch: Stretch::default(),
            lossy: false,
            last: 0,
        }
    }

    /// Returns the line that converts places to TSC values.
    pub(super) const fn line(&self) -> Line {
        self.line
    }

    fn tsc(&mut self, offset: u64, tsc: Tsc, mut since: Since) -> Anchor {
        let place = self.line.place(tsc.tsc);
        // Outside a PSB+, a TSC packet means that a clock had stopped. Inside one, a long silence means the same.
        let quiet = self
            .edges
            .is_some_and(|edges| edges.periods_in(place.saturating_sub(self.last), self.reader.clocks()) > 1);
        since.broken |= !self.reader.in_psb() || quiet;
        let mut edges = Edges::new(place);
        if self.adjust_is_known {
            edges.adjusted(tsc, self.reader.clocks());
        }
        self.stretch = self.look_ahead(edges);
        self.edges = Some(edges);
        self.lossy = false;
        self.last = place;
        Anchor {
            offset,
            least: place,
            most: Some(place),
            nominal: place,
            is_tsc: true,
            half_period: 0,
            since,
            stretch: self.stretch,
        }
    }

    fn mtc(&mut self, offset: u64, edge: Edge, mut since: Since) -> Anchor {
        since.broken |= edge.periods > 1;
        let Stretch { slack, early, room, end, .. } = self.stretch;
        let most = match edge.most {
            // The duration of an overflow is unknown.
            _ if self.lossy && !self.stretch.confirmed => None,
            Some(most) => Some(most.saturating_sub(early).saturating_add(slack)),
            None => room.map(|room| edge.least.saturating_add(room)),
        };
        let nominal = edge.nominal.saturating_sub(early).max(edge.least);
        self.last = nominal;
        Anchor {
            offset,
            least: edge.least,
            most: most.map(|most| end.map_or(most, |end| most.min(end))),
            nominal,
            is_tsc: false,
            half_period: self.edges.map_or(0, |edges| edges.half_period(self.reader.clocks())),
            since,
            stretch: self.stretch,
        }
    }

    /// Reads the packets after a TSC packet, up to the next one, to check if they can be trusted.
    fn look_ahead(&self, mut edges: Edges) -> Stretch {
        let mut reader = self.reader.clone();
        let (mut last, mut slept, mut off, mut lossy) = (None, false, false, false);
        loop {
            reader.pass_cycles(u64::MAX);
            let Some((_, packet)) = reader.next() else { break };
            match packet {
                Packet::Tma(tma) => edges.tma(tma),
                Packet::Mtc(mtc) => last = edges.mtc(mtc, reader.clocks()).or(last),
                Packet::Exstop(_) | Packet::Pwre(_) | Packet::Pwrx(_) => slept = true,
                Packet::TipPgd(_) => off = true,
                Packet::TipPge(_) => off = false,
                Packet::Ovf => lossy = true,
                Packet::Tsc(tsc) => {
                    slept |= !reader.in_psb();
                    let end = self.line.clone().place(tsc.tsc);
                    let tma = match reader.next() {
                        Some((_, Packet::Tma(tma))) if !reader.passed_others() => Some(tma),
                        _ => None,
                    };
                    let pause = Pause { slept, explains: (slept || off) && !lossy };
                    return self.judge(&edges, last, end, tma, pause);
                }
                _ => {}
            }
        }
        let stopped = slept && self.reader.clocks().tsc_varies;
        Stretch { doubt: stopped.then_some(Doubt::TscStopped), ..Stretch::default() }
    }

    /// Judges a stretch by the TSC packet at its end.
    fn judge(&self, edges: &Edges, last: Option<Edge>, end: u64, tma: Option<Tma>, pause: Pause) -> Stretch {
        let clocks = self.reader.clocks();
        let agrees = tma.and_then(|tma| edges.agrees(end, tma, clocks));
        let silence = last.map_or(0, |edge| end.saturating_sub(edge.least));
        let (mut doubt, mut slack) = (None, 0);
        if end < edges.tsc() {
            doubt = Some(Doubt::Contradiction);
        } else if clocks.tsc_varies && (agrees == Some(false) || agrees.is_none() && pause.slept) {
            doubt = Some(Doubt::TscStopped);
        } else if agrees == Some(false) || last.is_some_and(|edge| edge.least > end) {
            doubt = Some(Doubt::Contradiction);
        } else if last.is_some() && !pause.explains && edges.periods_in(silence, clocks) >= edges.unseen() {
            (doubt, slack) = (Some(Doubt::MtcLost), silence);
        }
        // If the fast counter of the TMA was too small, the last edge may seem to be after the TSC packet. One tick is
        // subtracted because each edge is rounded to ticks separately.
        let early = last.map_or(0, |edge| edge.nominal.saturating_sub(end).saturating_sub(1));
        // The edges are at least as far apart as they seem: MTCs may be missing. One tick is for the rounding.
        let room = last.map(|edge| end.saturating_sub(edge.least).saturating_add(1));
        Stretch { doubt, confirmed: true, slack, early, room, end: Some(end) }
    }
}

impl Iterator for Anchors<'_> {
    type Item = Anchor;

    fn next(&mut self) -> Option<Anchor> {
        let mut since = Since::default();
        loop {
            since.pass(self.reader.pass_cycles(u64::MAX));
            let (offset, packet) = self.reader.next()?;
            if self.reader.passed_others() {
                since.adjacent = None;
            }
            let edge = match packet {
                Packet::Tsc(tsc) => return Some(self.tsc(offset, tsc, since)),
                Packet::Tma(tma) => {
                    if let Some(edges) = &mut self.edges {
                        edges.tma(tma);
                    }
                    None
                }
                Packet::Mtc(mtc) => {
                    self.edges.as_mut().and_then(|edges| edges.mtc(mtc, self.reader.clocks()))
                }
                Packet::Cyc(cyc) => {
                    since.cycles = since.cycles.saturating_add(cyc.cycles);
                    since.adjacent = Some(cyc.cycles);
                    since.last_cyc = Some(offset);
                    continue;
                }
                Packet::Ovf => {
                    (since.broken, self.lossy) = (true, true);
                    None
                }
                Packet::Exstop(_) => {
                    since.broken = true;
                    None
                }
                _ => None,
            };
            if let Some(edge) = edge.filter(|_| !self.stretch.is_blind()) {
                return Some(self.mtc(offset, edge, since));
            }
            since.adjacent = None;
        }
    }
}
