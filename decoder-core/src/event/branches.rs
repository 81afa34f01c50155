//! BranchSink: reads outcomes, targets and timing packets in one loop, which are most of a trace.
//!
//! The loop ends before any other packet, and reads nothing while an event is incomplete. So it decides nothing that
//! [`EventDecoder::next`] would decide differently.

use super::{Counters, EventDecoder, Stamp, clock::Clock, decoder::State};
use crate::{
    error::Error,
    last_ip::LastIp,
    packet::{Input, Tnt},
};

/// Receives the branches of a trace in order.
pub(crate) trait BranchSink {
    /// The outcomes of the short TNT packet at `offset`, which is this byte.
    fn short(&mut self, offset: u64, packet: u8);

    /// Other outcomes: those of the long TNT packet at `offset`, or what is left of one.
    fn long(&mut self, offset: u64, outcomes: Tnt);

    /// The target of an indirect branch, from the TIP packet at `offset`.
    fn target(&mut self, offset: u64, ip: u64);

    /// Whether there is no room for the outcomes of a packet, or for a target.
    fn is_full(&self) -> bool;
}

/// The outcomes of a long TNT packet with this payload of 48 bits; `None` without a stop bit.
#[inline(always)]
const fn long(payload: u64) -> Option<Tnt> {
    if payload < 2 {
        return None;
    }
    // The highest set bit ends the outcomes.
    let len = 63 - payload.leading_zeros() as u8;
    Some(Tnt { bits: payload ^ 1 << len, len })
}

/// The part of an event decoder that reading branches changes, to read them again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    offset: u64,
    last_ip: LastIp,
    clock: Clock,
    held: u64,
    counters: Counters,
}

/// What reading branches has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAhead {
    /// The time of the last branch.
    pub(crate) when: Stamp,
    /// The offsets of the last TNT packet, and of the last packet before it or after it; as they were when nothing was
    /// read.
    pub(crate) outcomes_at: u64,
    pub(crate) located: u64,
}

impl EventDecoder<'_> {
    /// Where the decoder is, to return with [`reset`](Self::reset). Nothing but branches may be read in between.
    pub(crate) fn mark(&self) -> Mark {
        let Self { last_ip, clock, held, counters, .. } = *self;
        Mark { offset: self.offset(), last_ip, clock, held, counters }
    }

    /// Goes back to where the decoder was.
    pub(crate) fn reset(&mut self, mark: &Mark) {
        self.rewind(mark.offset);
        self.state = State::Synced;
        (self.last_ip, self.clock) = (mark.last_ip, mark.clock);
        (self.held, self.counters) = (mark.held, mark.counters);
    }

    /// Forgets what events have changed that came after branches, before a [`reset`](Self::reset) to those.
    pub(crate) fn drop_events(&mut self) {
        self.tracing = true;
        self.waiting.clear();
        self.ready.clear();
        self.replay = None;
    }

    /// Reads branches and timing packets up to something else, or until `into` is full. `read` is what was read
    /// before, and then what was read last.
    #[inline(always)]
    pub(crate) fn read_branches<B: BranchSink>(&mut self, into: &mut B, read: &mut ReadAhead) {
        if !self.has_nothing_open() || self.packets.peek_plain().is_none() {
            return;
        }
        let long_cycs = !self.config().errata.skd007;
        let input @ Input { base, .. } = self.packets.input();
        let trace = input.readable();
        let mut at = (self.packets.offset() - base) as usize;
        let (mut ip, mut packets) = (self.last_ip.base(), 0);
        let (mut located, mut outcomes_at) = (read.located, read.outcomes_at);
        // The end of the last branch's packet.
        let (mut branch_end, mut target_at) = (usize::MAX, None);
        // CYCs, and the time of the last branch that one came after.
        let (mut cycs, mut when) = (self.clock.cycs(), None);
        while !into.is_full() {
            let Some(&byte) = trace.get(at) else { break };
            if byte & 1 == 0 && byte > 2 {
                located = located.max(outcomes_at);
                outcomes_at = base + at as u64;
                into.short(outcomes_at, byte);
                at += 1;
                packets += 1;
                branch_end = at;
                continue;
            }
            let Some(&[first, second, ..]) = input.bytes.get(at..).and_then(<[u8]>::first_chunk::<9>) else {
                break;
            };
            match first {
                // TIP, where IPBytes is neither 0, which is no target, nor 5 or 7, which are reserved.
                0x2d | 0x4d | 0x6d | 0x8d | 0xcd => {
                    let Some((form, payload, size)) = self.packets.target_at(at) else { break };
                    ip = LastIp::updated(ip, form, payload);
                    located = base + at as u64;
                    target_at = Some(located);
                    into.target(located, ip);
                    at += size;
                    packets += 1;
                    branch_end = at;
                }
                // CYC of one byte, or of two: then the Exp bit of the second ends it.
                _ if first & 0b111 == 0b011 && long_cycs && cycs.are_plain() => {
                    if branch_end == at {
                        when = Some(cycs.now());
                    }
                    cycs.add(u64::from(first >> 3));
                    at += 1;
                    packets += 1;
                }
                _ if first & 0b111 == 0b111 && second & 1 == 0 && long_cycs && cycs.are_plain() => {
                    if branch_end == at {
                        when = Some(cycs.now());
                    }
                    cycs.add(u64::from(first >> 3) | u64::from(second >> 1) << 5);
                    at += 2;
                    packets += 1;
                }
                // Another CYC, or MTC.
                _ if first & 0b11 == 0b11 || first == 0x59 => {
                    if branch_end == at {
                        when = Some(cycs.now());
                        branch_end = usize::MAX;
                    }
                    if let Some(when) = when.take() {
                        read.when = self.clock.at(when);
                    }
                    self.clock.set_cycs(&cycs);
                    self.rewind(base + at as u64);
                    let next = self.packets.next_plain();
                    let tracked = next.map(|(offset, packet)| {
                        self.track_time(packet).map_err(|kind| Error { offset, kind })
                    });
                    cycs = self.clock.cycs();
                    let Some(tracked) = tracked else { break };
                    packets += 1;
                    at = (self.packets.offset() - base) as usize;
                    if let Err(error) = tracked {
                        self.state = State::Failing(error);
                        break;
                    }
                }
                // PAD.
                0x00 => {
                    at += 1;
                    packets += 1;
                    if branch_end == at - 1 {
                        branch_end = at;
                    }
                }
                // Long TNT.
                0x02 if second == 0xa3 => {
                    let Some(&payload) = input.bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) else {
                        break;
                    };
                    let Some(tnt) = long(u64::from_le_bytes(payload) >> 16) else { break };
                    located = located.max(outcomes_at);
                    outcomes_at = base + at as u64;
                    into.long(outcomes_at, tnt);
                    at += 8;
                    packets += 1;
                    branch_end = at;
                }
                _ => break,
            }
        }
        self.rewind(base + at as u64);
        self.counters.packets += packets;
        if branch_end == at {
            when = Some(cycs.now());
        }
        if let Some(when) = when {
            read.when = self.clock.at(when);
        }
        self.clock.set_cycs(&cycs);
        (read.located, read.outcomes_at) = (located, outcomes_at);
        if let Some(at) = target_at {
            self.last_ip.set(ip);
            self.held = at;
        }
    }

    /// Whether no event waits or is queued, so that the next packet alone decides what comes next.
    #[inline(always)]
    fn has_nothing_open(&self) -> bool {
        matches!(self.state, State::Synced)
            && self.tracing
            && self.waiting.is_empty()
            && self.ready.is_empty()
            && self.replay.is_none()
    }
}
