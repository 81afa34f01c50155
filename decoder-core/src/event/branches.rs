//! Branches: reads outcomes, targets and timing packets, which are most of a trace, in one loop.
//!
//! The loop ends before any other packet, and reads nothing while an event is incomplete. So its results are those of
//! [`EventDecoder::next`].

use super::{
    Counters, EventDecoder, Stamp,
    branch_place::{BranchPlace, is_timing},
    clock::Clock,
    decoder::{EventState, Giving},
};
use crate::{
    error::Error,
    keeper::Keeper,
    last_ip::LastIp,
    packet::{Input, Tnt, may_be_ovf_by_skd007},
    time::CycSums,
};

/// A receiver of the branches of a trace, in order.
pub(crate) trait BranchSink {
    /// True if [`ReadAhead`]'s offsets are wanted.
    const PLACES: bool;

    /// Receives the offset of the packet with the next outcomes or the next target.
    #[inline(always)]
    fn packet_at(&mut self, offset: u64) {
        let _ = offset;
    }

    /// Receives the outcomes of the short TNT packet that is this byte.
    fn short(&mut self, packet: u8);

    /// Receives other outcomes: those of a long TNT packet, or the rest of one.
    fn long(&mut self, outcomes: Tnt);

    /// Receives the target of an indirect branch.
    fn target(&mut self, ip: u64);

    /// Returns true if there is no room for the outcomes of a packet, or for a target.
    fn is_full(&self) -> bool;
}

/// The state of an event decoder that reading branches changes. It is saved so that they can be read again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    offset: u64,
    last_ip: LastIp,
    clock: Clock,
    counters: Counters,
}

/// The last branches that were read: their time, and the offsets of their packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAhead {
    /// The time of the last branch.
    pub(crate) when: Stamp,
    /// The offset of the last TNT packet; of an earlier one if none was read.
    pub(crate) outcomes_at: u64,
    /// The offset of the last TIP packet; of an earlier packet if none was read.
    pub(crate) target_at: u64,
}

impl Mark {
    /// No place.
    pub(crate) const UNKNOWN: Self =
        Self { offset: 0, last_ip: LastIp::new(), clock: Clock::STOPPED, counters: Counters::NONE };
}

impl<K: Keeper> EventDecoder<'_, K> {
    /// Returns the decoder's place, to return to by [`reset`](Self::reset). Only branches may be read in between.
    pub(crate) fn mark(&self) -> Mark {
        let EventState { last_ip, clock, counters, .. } = *self.state;
        Mark { offset: self.offset(), last_ip, clock, counters }
    }

    /// Returns to the place of `mark`.
    pub(crate) fn reset(&mut self, mark: &Mark) {
        self.rewind(mark.offset);
        self.state.giving = Giving::Synced;
        (self.state.last_ip, self.state.clock) = (mark.last_ip, mark.clock);
        self.state.counters = mark.counters;
    }

    /// Undoes the effects of events after the branches. A [`reset`](Self::reset) to the branches must follow.
    pub(crate) fn drop_events(&mut self) {
        self.state.tracing = true;
        self.state.waiting.clear();
        self.state.ready.clear();
        self.state.replay = None;
    }

    /// Reads branches and timing packets up to a packet of another kind, or until `into` is full. On entry `read` has
    /// the last branches read before, on return those of this call. Stops at the offset `until` if only branches
    /// follow.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn read_branches<B: BranchSink>(
        &mut self,
        into: &mut B,
        read: &mut ReadAhead,
        until: Option<u64>,
    ) {
        if !self.has_nothing_open() || self.packets.peek_plain().is_none() {
            return;
        }
        let input @ Input { base, .. } = self.packets.input();
        let mut trace = input.readable();
        if let Some(until) = until {
            trace = trace.get(..until.saturating_sub(base) as usize).unwrap_or(trace);
        }
        let mut place = BranchPlace::new((self.packets.offset() - base) as usize, self.state.last_ip.base());
        // Up to the first timing packet, the time is unchanged.
        loop {
            // Frequent packets have a loop of their own: one loop for all packets was a tenth slower.
            while !into.is_full()
                && trace.get(place.at).is_some_and(|&byte| place.frequent(&input, byte, into))
            {}
            let Some(&byte) = trace.get(place.at) else { break };
            if into.is_full() || place.other(&input, byte, into).is_none() {
                break;
            }
        }
        if trace.get(place.at).copied().is_some_and(is_timing) {
            self.read_timed_branches(into, &input, &mut place, read);
        } else if place.has_branch() {
            read.when = self.state.clock.now();
        }
        self.rewind(base + place.at as u64);
        self.state.counters.packets += place.packets;
        if B::PLACES {
            place.write_offsets(base, read);
        }
        if let Some(ip) = place.last_target() {
            self.state.last_ip.set(ip);
        }
    }

    /// Continues with timing packets between the branches.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn read_timed_branches<B: BranchSink>(
        &mut self,
        into: &mut B,
        input: &Input<'_>,
        place: &mut BranchPlace,
        read: &mut ReadAhead,
    ) {
        let trace = input.readable();
        let mut cycs = self.state.clock.cycs();
        let mut plain = cycs.are_plain();
        // The sums of CYCs now, and at the last branch.
        let (mut sums, mut at_branch) = (CycSums::default(), CycSums::default());
        let mut branch = place.has_branch();
        while !into.is_full() {
            let Some(&byte) = trace.get(place.at) else { break };
            if !place.frequent(input, byte, into) {
                match place.other(input, byte, into) {
                    Some(true) => {}
                    Some(false) => continue,
                    None if is_timing(byte) => {
                        if branch {
                            read.when = self.state.clock.after_cycs(&cycs, at_branch);
                            branch = false;
                        }
                        self.state.clock.apply_cycs(&cycs, sums);
                        sums = CycSums::default();
                        self.rewind(input.base + place.at as u64);
                        let Some((offset, packet)) = self.packets.next_plain() else { break };
                        let tracked = self.track_time(packet);
                        cycs = self.state.clock.cycs();
                        plain = cycs.are_plain();
                        place.skip((self.packets.offset() - offset) as usize);
                        if let Err(kind) = tracked {
                            self.state.giving = Giving::Failing(Error { offset, kind });
                            break;
                        }
                        continue;
                    }
                    None => break,
                }
            }
            (branch, at_branch) = (true, sums);
            // Most branches are followed by a CYC of one or two bytes.
            match trace.get(place.at) {
                Some(&first) if plain && first & 0b111 == 0b011 => {
                    cycs.add(&mut sums, u64::from(first >> 3));
                    place.skip(1);
                }
                Some(&first) if plain && first & 0b111 == 0b111 => {
                    match input.bytes.get(place.at + 1..).and_then(<[u8]>::first_chunk) {
                        Some(&[second, third]) if second & 1 == 0 && !may_be_ovf_by_skd007(second, third) => {
                            cycs.add(&mut sums, u64::from(first >> 3) | u64::from(second >> 1) << 5);
                            place.skip(2);
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        if branch {
            read.when = self.state.clock.after_cycs(&cycs, at_branch);
        }
        self.state.clock.apply_cycs(&cycs, sums);
    }

    /// Returns true if no event waits or is queued, so that the next event depends on the next packet alone.
    #[inline(always)]
    pub(super) fn has_nothing_open(&self) -> bool {
        matches!(self.state.giving, Giving::Synced)
            && self.state.tracing
            && self.state.waiting.is_empty()
            && self.state.ready.is_empty()
            && self.state.replay.is_none()
    }
}
