//! Resolving an overflow of the internal buffer. Source: SDM vol. 3, Intel Processor Trace, "Internal Buffer
//! Overflow" and "Overflow (OVF) Packet".

use pugmark_decoder_core::packet::Packet;

use super::Packetizer;
use crate::Context;

/// The lost packets that must be repeated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LostPackets {
    /// A PIP: the reader's CR3 is stale.
    pub(super) pip: bool,
    /// A VMCS packet.
    pub(super) vmcs: bool,
    /// A MODE.TSX, or the FUP or TIP that it binds to.
    pub(super) tsx: bool,
    /// A TraceStop packet.
    pub(super) trace_stop: bool,
}

impl Packetizer {
    /// Emits OVF, and then the state that the reader needs again: TraceStop, or CR3, the VMCS, the transactional state,
    /// the mode and the IP at which the trace resumes. The IP is in a FUP, unless some of the state precedes it: then
    /// it is in a TIP.PGE, because no table of the manual has such packets between OVF and FUP.
    pub(super) fn resolve_overflow(&mut self, next: &Context) {
        self.stream.resume();
        self.rets.clear();
        if core::mem::take(&mut self.lost.trace_stop) {
            self.lost.trace_stop = !self.stream.packet(Packet::TraceStop);
            return;
        }
        let lost_state = self.lost.pip || self.lost.vmcs || self.lost.tsx;
        let reader_knows_state = !lost_state && self.mode == Some(self.mode_of(next));
        if self.trigger_en {
            self.repeat_lost(next);
        }
        if self.packet_en() {
            self.mode_exec_at(next, if reader_knows_state { Packet::Fup } else { Packet::TipPge });
        }
    }

    /// Emits the packets of the state that an overflow lost, except MODE.Exec.
    pub(super) fn repeat_lost(&mut self, at: &Context) {
        if self.lost.pip {
            self.pip(at);
        }
        if self.lost.vmcs {
            self.vmcs();
        }
        if self.lost.tsx {
            self.mode_tsx(false);
        }
    }

    /// Returns true if there is an overflow that is not resolved.
    pub(crate) fn overflowed(&self) -> bool {
        self.stream.overflowed()
    }
}
