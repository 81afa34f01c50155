//! The innermost part of reading branches: packet by packet, with all counts in registers.

use super::{BranchSink, ReadAhead};
use crate::{
    last_ip::LastIp,
    packet::{Input, TIP_16, TIP_32, Tnt, is_short_tnt, target_after},
};

/// Returns true if a packet with this first byte is a CYC or an MTC.
#[inline(always)]
pub(super) const fn is_timing(first: u8) -> bool {
    first & 0b11 == 0b11 || first == 0x59
}

/// The progress of reading branches: the place in the input, counted from its start, and the branches up to there.
///
/// All its methods are inlined; otherwise it would be in memory and not in registers.
pub(super) struct BranchPlace {
    pub(super) at: usize,
    pub(super) packets: u64,
    pads: u64,
    ip: u64,
    /// The place of the last TIP packet, or [`NOWHERE`].
    target_at: usize,
    /// The place of the last TNT packet, or [`NOWHERE`].
    outcomes_at: usize,
}

/// Stands for a packet that has not come yet.
const NOWHERE: usize = usize::MAX;

impl BranchPlace {
    #[inline(always)]
    pub(super) const fn new(at: usize, ip: u64) -> Self {
        Self { at, packets: 0, pads: 0, ip, target_at: NOWHERE, outcomes_at: NOWHERE }
    }

    /// Returns true if a branch was read. Correct only as long as no timing packet was read.
    #[inline(always)]
    pub(super) const fn has_branch(&self) -> bool {
        self.packets > self.pads
    }

    /// Skips a packet; `size` is in bytes.
    #[inline(always)]
    pub(super) const fn skip(&mut self, size: usize) {
        self.at += size;
        self.packets += 1;
    }

    /// Notes a TNT packet.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn outcomes<B: BranchSink>(&mut self, input: &Input<'_>, into: &mut B) {
        if B::PLACES {
            self.outcomes_at = self.at;
        }
        into.packet_at(input.base + self.at as u64);
    }

    /// Skips one of the most frequent packets with branches: a short TNT, or a TIP with 16 or 32 bits of the address.
    /// Returns true if it is one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn frequent<B: BranchSink>(&mut self, input: &Input<'_>, first: u8, into: &mut B) -> bool {
        if is_short_tnt(first) {
            self.outcomes(input, into);
            self.skip(1);
            into.short(first);
            return true;
        }
        match first {
            TIP_16 => self.tip(input, TIP_16, into).is_some(),
            TIP_32 => self.tip(input, TIP_32, into).is_some(),
            _ => false,
        }
    }

    /// Skips a packet that is no timing packet and not [`frequent`](Self::frequent). Returns true if it is a branch, or
    /// `None` if it ends the reading.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn other<B: BranchSink>(
        &mut self,
        input: &Input<'_>,
        first: u8,
        into: &mut B,
    ) -> Option<bool> {
        match first {
            // TIP with more bits of the address. An IPBytes of 0 has no target, and 5 and 7 are reserved.
            0x6d | 0x8d | 0xcd => self.tip(input, first, into),
            // PAD.
            0x00 => {
                self.pads += 1;
                self.skip(1);
                Some(false)
            }
            // Long TNT.
            0x02 => {
                let packet = u64::from_le_bytes(*input.bytes.get(self.at..)?.first_chunk()?);
                let outcomes = Tnt::from_payload(packet >> 16).ok().filter(|_| packet >> 8 & 0xff == 0xa3)?;
                self.outcomes(input, into);
                self.skip(8);
                into.long(outcomes);
                Some(true)
            }
            _ => None,
        }
    }

    /// Skips the TIP packet with this first byte, or returns `None` if it is incomplete.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn tip<B: BranchSink>(&mut self, input: &Input<'_>, first: u8, into: &mut B) -> Option<bool> {
        let (form, payload, size) = target_after(first, input.bytes.get(self.at..)?.first_chunk()?)?;
        self.ip = LastIp::updated(self.ip, form, payload);
        self.target_at = self.at;
        into.packet_at(input.base + self.at as u64);
        self.skip(size);
        into.target(self.ip);
        Some(true)
    }

    /// Returns the last target.
    #[inline(always)]
    pub(super) const fn last_target(&self) -> Option<u64> {
        if self.target_at == NOWHERE { None } else { Some(self.ip) }
    }

    /// Sets the offsets of the last packets in `read`. `base` is the offset of the input's first byte.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn write_offsets(&self, base: u64, read: &mut ReadAhead) {
        let offset = |at: usize| base + at as u64;
        if self.outcomes_at != NOWHERE {
            read.outcomes_at = offset(self.outcomes_at);
        }
        if self.target_at != NOWHERE {
            read.target_at = offset(self.target_at);
        }
    }
}
