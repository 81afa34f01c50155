//! The packets of a trace as the timeline reads them: on and on, over damaged bytes, with the clocks that hold there.

use super::ClockChange;
use crate::{
    config::Clocks,
    packet::{Packet, Packets},
};

/// Gives packets and their offsets. If bytes are no packet it continues at the next PSB.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    packets: Packets<'a>,
    clocks: Clocks,
    changes: &'a [ClockChange],
    in_psb: bool,
}

impl<'a> Reader<'a> {
    /// In front of the packet that `packets` comes to next.
    pub(super) fn new(packets: Packets<'a>) -> Self {
        let clocks = packets.config().clocks;
        Self { packets, clocks, changes: &[], in_psb: false }
    }

    /// The same with other changes of the clocks.
    pub(super) const fn with_changes(self, changes: &'a [ClockChange]) -> Self {
        Self { changes, ..self }
    }

    /// In front of a PSB before `offset`, with another one in between if there is one; `self` where there is none. Of a
    /// reader that has read nothing.
    pub(super) fn before(&self, offset: u64) -> Self {
        let mut reader = self.clone();
        reader.packets.set_offset(offset);
        // In the PSB+ that `offset` may be in, its TSC packet may be behind it.
        match reader.packets.sync_backward() {
            Some(_) => reader.packets.sync_backward(),
            None => return self.clone(),
        };
        reader
    }

    /// The state of the clocks at the last packet returned.
    pub(super) const fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Whether the last packet returned is between PSB and PSBEND.
    pub(super) const fn in_psb(&self) -> bool {
        self.in_psb
    }

    /// The packet at `offset`, where one is known to begin.
    pub(super) fn packet_at(&self, offset: u64) -> Option<Packet> {
        let mut packets = self.packets.clone();
        packets.set_offset(offset);
        packets.next()?.ok().map(|(_, packet)| packet)
    }
}

impl Iterator for Reader<'_> {
    type Item = (u64, Packet);

    fn next(&mut self) -> Option<(u64, Packet)> {
        loop {
            let Ok((offset, packet)) = self.packets.next()? else {
                self.in_psb = false;
                self.packets.sync_forward()?;
                continue;
            };
            if let Some((change, rest)) = self.changes.split_first()
                && change.offset <= offset
            {
                self.clocks = change.clocks;
                self.changes = rest;
            }
            match packet {
                Packet::Psb => self.in_psb = true,
                Packet::PsbEnd | Packet::Ovf => self.in_psb = false,
                _ => {}
            }
            return Some((offset, packet));
        }
    }
}
