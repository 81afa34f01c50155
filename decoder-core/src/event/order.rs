//! Detects packets that a processor cannot send at their place.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", the rows "Dependencies" and "Generation Scenario"
//! of each packet.

use super::{EventDecoder, branch::is_branch};
use crate::keeper::Keeper;
use crate::packet::Packet;

impl<K: Keeper> EventDecoder<'_, K> {
    /// Returns true if no processor sends `packet` after the packets before it.
    #[inline]
    pub(super) fn is_out_of_place(&self, packet: &Packet) -> bool {
        let needs_fup = || self.state.waiting.any(|waiter| waiter.partner.needs_fup());
        let is_within_branch = || self.state.waiting.any(is_branch);
        match packet {
            // `tnt` and `tip` check that tracing is on.
            Packet::TntShort(_) | Packet::TntLong(_) => needs_fup() || is_within_branch(),
            Packet::Tip(_) => needs_fup(),
            Packet::TipPgd(_) => !self.state.tracing || needs_fup(),
            Packet::TipPge(_) => self.state.tracing || needs_fup(),
            Packet::Fup(_) => {
                let claimed = self.state.waiting.any(|waiter| waiter.partner.claims_fup());
                !claimed && (!self.state.tracing || is_within_branch())
            }
            Packet::PsbEnd => true,
            _ => false,
        }
    }
}
