//! Power events that instructions cause: HLT, MWAIT and waking up. Source: SDM vol. 3, Intel Processor Trace, "Power
//! Event Tracing", and the cases of MWAIT, HLT and of interrupts during a C-state.

use pugmark_decoder_core::packet::Packet;
use pugmark_decoder_core::packet::{Exstop, Mwait, Pwre, Pwrx};

use super::Packetizer;
use crate::Context;
use crate::intel::registers::ctl;

/// The C-state that the model's core reaches for every request.
const C1: u8 = 1;

impl Packetizer {
    /// Handles HLT, or MWAIT with its hints and extensions: the processor enters a C-state deeper than C0.0.
    pub(super) fn sleep(&mut self, before: &Context, mwait: Option<u64>) {
        // Hints[7:4] = 15 requests C0.
        if mwait.is_some_and(|operand| operand >> 4 & 0xf == 0xf) {
            return;
        }
        self.in_c_state = true;
        if self.ctl & ctl::PWR_EVT_EN == 0 {
            return;
        }
        if let Some(operand) = mwait
            && self.context_en
        {
            let (hints, ext) = (operand as u32 & 0xff, (operand >> 32) as u32 & 3);
            self.stream.packet(Packet::Mwait(Mwait { hints, ext }));
        }
        self.stream.packet(Packet::Pwre(Pwre { state: C1, sub_state: 0, hw: false }));
        self.stream.packet(Packet::Exstop(Exstop { ip: self.context_en }));
        if self.context_en {
            self.stream.ip(before.ip, Packet::Fup);
        }
    }

    /// Handles the first event after HLT or MWAIT. The core clock was stopped, so the time is reported again.
    pub(super) fn wake(&mut self, tsc: u64, interrupt: bool) {
        if !core::mem::take(&mut self.in_c_state) {
            return;
        }
        self.stream.clock.wake(tsc);
        self.timestamp();
        if self.ctl & ctl::PWR_EVT_EN != 0 {
            let (store, autonomous) = (false, false);
            self.stream.packet(Packet::Pwrx(Pwrx { last: C1, deepest: C1, interrupt, store, autonomous }));
        }
    }
}
