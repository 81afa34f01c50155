//! Event trace: the packets CFE (control flow event) and EVD (event data), and MODE.Exec for RFLAGS.IF. Source: SDM
//! vol. 3, Intel Processor Trace, "Event Trace", "Control Flow Event (CFE) Packet", "Event Data (EVD) Packet".
//!
//! With branch packets on, a CFE shares the FUP of the event it announces (or binds to the IRET), so its own IP bit is
//! clear; otherwise it has a FUP of its own.

use pugmark_decoder_core::packet::Packet;
use pugmark_decoder_core::packet::{Cfe, Evd};

use super::Packetizer;
use crate::intel::registers::ctl;
use crate::{Context, Delivery};

const CFE_INTR: u8 = 1;
const CFE_IRET: u8 = 2;
const EVD_CR2: u8 = 0;

impl Packetizer {
    pub(super) fn event_of_delivery(&mut self, delivery: &Delivery) {
        if !self.traces_events() {
            return;
        }
        if let Some(payload) = delivery.cr2 {
            self.stream.packet(Packet::Evd(Evd { kind: EVD_CR2, payload }));
        }
        self.cfe(CFE_INTR, delivery.vector, &delivery.before);
    }

    pub(super) fn event_of_iret(&mut self, before: &Context) {
        if self.traces_events() {
            self.cfe(CFE_IRET, 0, before);
        }
    }

    /// Emits MODE.Exec with the new value and a FUP with the next IP, after an instruction that changed RFLAGS.IF (CLI,
    /// STI, POPF).
    pub(super) fn interrupt_flag_changed(&mut self, after: &Context) {
        if self.packet_en() && self.ctl & ctl::EVENT_EN != 0 {
            self.mode_exec_at(after, Packet::Fup);
        }
    }

    fn traces_events(&self) -> bool {
        self.ctl & ctl::EVENT_EN != 0 && self.context_en
    }

    fn cfe(&mut self, kind: u8, vector: u8, before: &Context) {
        let ip = self.filter_en && !self.packet_en();
        self.stream.packet(Packet::Cfe(Cfe { kind, vector, ip }));
        if ip {
            self.stream.ip(before.ip, Packet::Fup);
        }
    }
}
