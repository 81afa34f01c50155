//! PSB+, the packets at which decoding can start, and the packets that give the time when tracing starts. Source: SDM
//! vol. 3, Intel Processor Trace, "Decoder Synchronization (PSB+)".

use pugmark_decoder_core::packet::Packet;
use pugmark_decoder_core::packet::{Cbr, Mnt};

use super::Packetizer;
use crate::Context;

/// The payload of MNT packets. Its meaning is model-specific.
const MAINTENANCE: u64 = 0x0102_0304_0506_0708;

impl Packetizer {
    /// Emits PSB, the state, PSBEND. If `packet_en`, the trace is on at `at`, and the PSB+ reports that.
    pub(super) fn psb_plus(&mut self, at: &Context, packet_en: bool) {
        self.stream.psb();
        self.rets.clear();
        self.mode = None;
        self.timestamp();
        self.pip(at);
        self.vmcs();
        self.mode_tsx(false);
        if packet_en {
            self.mode_exec_at(at, Packet::Fup);
        }
        self.stream.packet(Packet::PsbEnd);
        if self.settings.maintenance {
            self.stream.packet(Packet::Mnt(Mnt { payload: MAINTENANCE }));
        }
    }

    /// Emits TSC, TMA, CBR.
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
