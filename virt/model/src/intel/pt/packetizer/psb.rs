//! PSB+ and the packets that tell the time when tracing begins. Source: SDM vol. 3, Intel Processor Trace, "Decoder
//! Synchronization (PSB+)".

use pugmark_decoder_core::Packet;
use pugmark_decoder_core::packet::{Cbr, ModeTsx};

use super::Packetizer;
use crate::Context;
use crate::intel::registers::ctl;

impl Packetizer {
    /// PSB, the state, PSBEND. `packet_en`: the trace is on at `at`, and PSB+ says so.
    pub(super) fn psb_plus(&mut self, at: &Context, packet_en: bool) {
        self.stream.psb();
        self.rets.clear();
        self.mode = None;
        self.timestamp();
        self.pip(at);
        if self.context_en && self.ctl & ctl::BRANCH_EN != 0 {
            self.stream.packet(Packet::ModeTsx(ModeTsx { in_tx: false, abort: false }));
        }
        if packet_en {
            self.mode_exec_at(at, Packet::Fup);
        }
        self.stream.packet(Packet::PsbEnd);
    }

    /// TSC, TMA, CBR.
    pub(super) fn timestamp(&mut self) {
        if let Some(tsc) = self.stream.clock.tsc() {
            self.stream.packet(tsc);
        }
        if let Some(tma) = self.stream.clock.tma() {
            self.stream.packet(tma);
        }
        self.stream.packet(Packet::Cbr(Cbr { ratio: self.core_ratio, reserved: 0 }));
    }
}
