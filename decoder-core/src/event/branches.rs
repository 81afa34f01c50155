//! A fast path to outcomes and targets of branches, which are most of a trace.
//!
//! It decides nothing itself: if anything else may come next, it reads nothing and leaves the packet to
//! [`EventDecoder::next`].

use super::{EventDecoder, Stamp, decoder::State};
use crate::{
    error::Error,
    packet::{Packet, Tnt},
};

/// What the trace has for the next branch, if nothing comes before it.
pub(crate) enum Branch {
    /// Outcomes of the packet at this offset, which has been read.
    Outcomes(u64, Tnt),
    /// A target, in a packet that has not been read yet: [`EventDecoder::take_target`] reads it.
    Target,
}

impl EventDecoder<'_> {
    /// Returns what the trace has for the next branch, if only timing packets come before that.
    #[inline(always)]
    pub(crate) fn next_branch(&mut self) -> Option<Branch> {
        if !self.has_nothing_open() {
            return None;
        }
        loop {
            match self.packets.peek_plain()? {
                // IPBytes 0 is no target, 5 and 7 are reserved.
                0x2d | 0x4d | 0x6d | 0x8d | 0xcd => return Some(Branch::Target),
                tnt if tnt & 1 == 0 && tnt > 2 => {}
                // CYC and MTC.
                time if time & 0b11 == 0b11 || time == 0x59 => {}
                _ => return None,
            }
            let (offset, packet) = self.packets.next_plain()?;
            self.counters.packets += 1;
            if let Packet::TntShort(tnt) = packet {
                return Some(Branch::Outcomes(offset, tnt));
            }
            if let Err(kind) = self.track_time(packet) {
                self.state = State::Failing(Error { offset, kind });
                return None;
            }
        }
    }

    /// Reads the TIP packet of a [`Branch::Target`] and returns its offset and address.
    #[inline(always)]
    pub(crate) fn take_target(&mut self) -> Option<(u64, u64)> {
        let (offset, form, payload) = self.packets.next_target()?;
        self.counters.packets += 1;
        self.held = offset;
        Some((offset, self.last_ip.update_by(form, payload)))
    }

    /// The time of the packet that was read last.
    #[inline(always)]
    pub(crate) fn now(&self) -> Stamp {
        self.clock.now()
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
