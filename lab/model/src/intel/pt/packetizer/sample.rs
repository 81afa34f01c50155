//! PEBS records in the trace: BBP, BIPs and BEP, and the FUP after it.
//!
//! SDM vol. 3, Performance Monitoring, "PEBS Output to Intel Processor Trace", was not available; the order of packets
//! is the one that perf's decoder reads (Linux, `tools/perf/util/intel-pt-decoder/intel-pt-decoder.c`, the cases
//! INTEL_PT_BBP to INTEL_PT_BEP_IP of `intel_pt_walk_trace`).
//!
//! Assumptions made here:
//! - A record is dropped while TriggerEn, ContextEn or FilterEn is clear, as is a PTW, whose rule the manual gives. The
//!   enables are those after the instruction: PEBS is trap-like.
//! - The record follows the packets of its instruction. Its FUP has the IP of the next instruction, as has the FUP of a
//!   trap. perf walks over the code up to the FUP's IP, so a record before the packets of its own instruction, with
//!   that instruction's IP, would do as well.
//! - BEP.IP is always set.

use pugmark_decoder_core::packet::Bep;
use pugmark_decoder_core::packet::Packet;

use super::Packetizer;
use crate::Context;
use crate::intel::pebs::blocks::{PebsBlockItems, begin_of_block};

impl Packetizer {
    /// Emits a record that was made at the end of the instruction before `next`.
    pub(crate) fn sample(&mut self, record: &PebsBlockItems, next: &Context) {
        if !self.trigger_en || !self.context_en || !self.filter_en {
            return;
        }
        let mut block = None;
        for (kind, item) in record.iter() {
            if block.replace(kind) != Some(kind) {
                self.stream.packet(Packet::Bbp(begin_of_block(kind, item)));
            }
            self.stream.packet(Packet::Bip(item));
        }
        self.stream.packet(Packet::Bep(Bep { ip: true }));
        self.stream.ip(next.ip, Packet::Fup);
    }
}
