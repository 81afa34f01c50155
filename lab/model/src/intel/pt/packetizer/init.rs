//! INIT and the start-up interrupt. Source: SDM vol. 3, Intel Processor Trace, "Packet Generation under Different
//! Enable Conditions" (INIT of the bootstrap processor, INIT of an application processor, SIPI).
//!
//! An application processor emits FUP and PIP at INIT, and the TIP that they belong to at the start-up interrupt.

use pugmark_decoder_core::packet::Packet;

use super::{Packetizer, TransferKind};
use crate::{Context, Init};

impl Packetizer {
    /// Handles INIT, which clears CR3. An INIT of a processor that waits for its start-up interrupt changes nothing.
    pub(crate) fn init(&mut self, init: &Init) {
        let before = init.before;
        self.in_tx = false;
        self.non_root = false;
        if !self.trigger_en || self.waiting.is_some() {
            return;
        }
        self.wake(init.tsc, false);
        self.stream.tick(init.tsc);
        if let Some(after) = &init.after {
            self.transfer(TransferKind::Init, &before, after);
            return;
        }
        let stopped = Context { cr3: 0, ..before };
        if self.packet_en() {
            self.stream.ip(before.ip, Packet::Fup);
            self.pip(&stopped);
        }
        self.waiting = Some(stopped);
    }

    /// Handles a start-up interrupt, which starts execution at `at` if the processor waits for it. Returns true if it
    /// does.
    pub(crate) fn start_up(&mut self, at: &Context, tsc: u64) -> bool {
        let Some(stopped) = self.waiting.take().filter(|_| self.trigger_en) else { return false };
        self.stream.tick(tsc);
        self.transfer(TransferKind::Far, &stopped, at);
        true
    }
}
