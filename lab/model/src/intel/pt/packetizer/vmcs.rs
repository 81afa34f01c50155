//! VMCS packets, after VMPTRLD and in each PSB+ in VMX operation. Source: SDM vol. 3, Intel Processor Trace, "VMCS
//! Packet", "Decoder Synchronization (PSB+)", "VMX-Specific Packets and VMCS Controls".

use pugmark_decoder_core::packet::{Packet, Vmcs};

use super::Packetizer;

/// The base address in a VMCS packet if there is no current VMCS: all ones.
pub(super) const NONE: u64 = !0;

impl Packetizer {
    /// Handles VMPTRLD, which loads the address of a VMCS.
    pub(crate) fn load_vmcs(&mut self, base: u64, tsc: u64) {
        self.vmcs = Some(base);
        if self.trigger_en {
            self.stream.tick(tsc);
            self.vmcs();
        }
    }

    /// Notes that there is no current VMCS any more: after VMCLEAR, or because VMX operation ends.
    pub(crate) fn forget_vmcs(&mut self, in_vmx: bool) {
        self.vmcs = in_vmx.then_some(NONE);
    }

    /// Emits a VMCS packet if the enables allow it.
    pub(super) fn vmcs(&mut self) {
        if let Some(base) = self.vmcs.filter(|_| self.context_en && !self.concealed) {
            self.lost.vmcs = !self.stream.packet(Packet::Vmcs(Vmcs { base }));
        }
    }
}
