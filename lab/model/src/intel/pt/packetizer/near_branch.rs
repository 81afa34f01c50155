//! Near branches of 64-bit code while nothing else can show in the trace: the same packets as those of
//! `Packetizer::instruction`, without the checks whose results cannot have changed.

use pugmark_decoder_core::packet::Packet;

use super::Packetizer;
use crate::branch::InstructionKind;
use crate::intel::registers::ctl;
use crate::{Context, ExecMode};

impl Packetizer {
    /// Returns true if near branches show in the trace in the state `at`, for any target, and no other packet can be
    /// due than a PSB+: PacketEn is set, no address is filtered, no timing packet is emitted between two PSBs, and the
    /// internal buffer has not overflowed.
    pub(crate) fn traces_near_branches(&self, at: &Context) -> bool {
        let clocks = ctl::MTC_EN | ctl::CYC_EN;
        at.mode == ExecMode::Bits64
            && self.packet_en()
            && self.filter.is_open()
            && self.ctl & (clocks | ctl::DIS_TNT) == 0
            && !self.in_c_state
            && !self.stream.overflowed()
    }

    /// Handles a near branch that retired, while [`Self::traces_near_branches`].
    #[inline]
    pub(crate) fn near_branch(&mut self, kind: InstructionKind, next_ip: u64, to: u64, tsc: u64) {
        self.stream.clock.advance(tsc);
        match kind {
            InstructionKind::Conditional => self.stream.branch_outcome(to != next_ip),
            InstructionKind::DirectCall { to_next: false } => self.rets.push(next_ip),
            InstructionKind::IndirectJump => self.stream.deferrable_tip(to),
            InstructionKind::IndirectCall => {
                self.rets.push(next_ip);
                self.stream.deferrable_tip(to);
            }
            InstructionKind::Return if self.compresses(to) => self.stream.branch_outcome(true),
            InstructionKind::Return => self.stream.ip(to, Packet::Tip),
            // A direct jump, or a call of the next instruction, which only reads the instruction pointer. The others
            // are no near branches.
            _ => {}
        }
    }
}
