//! Resolving an overflow of the internal buffer. Source: SDM vol. 3, Intel Processor Trace, "Internal Buffer
//! Overflow" and "Overflow (OVF) Packet".

use pugmark_decoder_core::Packet;

use super::Packetizer;
use crate::Context;

/// What was lost and has to be said again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lost {
    /// A PIP: CR3 is not what the reader thinks.
    pub(super) pip: bool,
    /// A TraceStop packet.
    pub(super) trace_stop: bool,
}

impl Packetizer {
    /// OVF, and what the reader has to know again: TraceStop, or CR3, the mode and the IP at which the trace resumes.
    /// The IP comes in a FUP; in a TIP.PGE where CR3 or the mode come before it, which between OVF and FUP would be
    /// packets that no manual's table has there.
    pub(super) fn resolve_overflow(&mut self, next: &Context) {
        self.stream.resume();
        self.rets.clear();
        if core::mem::take(&mut self.lost.trace_stop) {
            self.lost.trace_stop = !self.stream.packet(Packet::TraceStop);
            return;
        }
        let told = !self.lost.pip && self.mode == Some(self.mode_of(next));
        if self.lost.pip && self.trigger_en {
            self.pip(next);
        }
        if self.packet_en() {
            self.mode_exec_at(next, if told { Packet::Fup } else { Packet::TipPge });
        }
    }

    /// An overflow is unresolved.
    pub(crate) fn overflowed(&self) -> bool {
        self.stream.overflowed()
    }
}
