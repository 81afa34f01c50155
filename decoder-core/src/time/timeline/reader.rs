//! The packets that concern time, as the timeline reads them: damaged bytes are skipped, and each packet has the clocks
//! that apply at its offset.

use super::ClockChange;
use crate::{
    config::Clocks,
    packet::{Packet, Packets, cycles::Passed},
};

/// An iterator over the packets that [concern time](is_of_time), and their offsets. If the bytes are no packet, it
/// continues at the next PSB.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    packets: Packets<'a>,
    clocks: Clocks,
    changes: &'a [ClockChange],
    in_psb: bool,
    passed_others: bool,
}

impl<'a> Reader<'a> {
    /// Creates a reader that starts at the next packet of `packets`.
    pub(super) fn new(packets: Packets<'a>) -> Self {
        let clocks = packets.config().clocks;
        Self { packets, clocks, changes: &[], in_psb: false, passed_others: false }
    }

    /// Returns the same reader with other changes of the clocks.
    pub(super) const fn with_changes(self, changes: &'a [ClockChange]) -> Self {
        Self { changes, ..self }
    }

    /// Returns a reader that starts at the second PSB before `offset`, or at the only one; a copy of `self` if there is
    /// none. `self` must not have read anything yet.
    pub(super) fn before(&self, offset: u64) -> Self {
        let mut reader = self.clone();
        reader.packets.set_offset(offset);
        // One PSB is not enough: `offset` may be inside a PSB+, before its TSC packet.
        match reader.packets.sync_backward() {
            Some(_) => reader.packets.sync_backward(),
            None => return self.clone(),
        };
        reader
    }

    /// Returns the state of the clocks at the last packet returned.
    pub(super) const fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Returns true if the last packet returned is between PSB and PSBEND.
    pub(super) const fn in_psb(&self) -> bool {
        self.in_psb
    }

    /// Returns true if packets other than PADs lie between the last packet returned and the one before it.
    pub(super) const fn passed_others(&self) -> bool {
        self.passed_others
    }

    /// Passes branches and CYCs that begin before the offset `until`, as far as they need no decoding.
    #[inline]
    pub(super) fn pass_cycles(&mut self, until: u64) -> Passed {
        self.packets.pass_cycles(until)
    }

    /// Returns the offset of the next packet.
    pub(super) fn offset(&self) -> u64 {
        self.packets.offset()
    }

    /// Returns the packet at `offset`. The caller must know that a packet begins there.
    pub(super) fn packet_at(&self, offset: u64) -> Option<Packet> {
        let mut packets = self.packets.clone();
        packets.set_offset(offset);
        packets.next()?.ok().map(|(_, packet)| packet)
    }
}

impl Iterator for Reader<'_> {
    type Item = (u64, Packet);

    #[inline]
    fn next(&mut self) -> Option<(u64, Packet)> {
        self.passed_others = false;
        loop {
            let Ok((offset, packet)) = self.packets.next()? else {
                self.in_psb = false;
                self.packets.sync_forward()?;
                continue;
            };
            while let Some((change, rest)) = self.changes.split_first() {
                if change.offset > offset {
                    break;
                }
                self.clocks = change.clocks;
                self.changes = rest;
            }
            match packet {
                Packet::Psb => self.in_psb = true,
                Packet::PsbEnd | Packet::Ovf => self.in_psb = false,
                _ => {}
            }
            if is_of_time(&packet) {
                return Some((offset, packet));
            }
            self.passed_others |= packet != Packet::Pad;
        }
    }
}

/// Returns true if a packet gives a time, changes a clock, or shows that a clock stopped or packets are missing.
const fn is_of_time(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::Tsc(_)
            | Packet::Tma(_)
            | Packet::Mtc(_)
            | Packet::Cyc(_)
            | Packet::Cbr(_)
            | Packet::Ovf
            | Packet::Exstop(_)
            | Packet::Pwre(_)
            | Packet::Pwrx(_)
            | Packet::TipPge(_)
            | Packet::TipPgd(_)
    )
}
