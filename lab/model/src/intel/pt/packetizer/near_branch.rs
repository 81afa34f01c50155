//! Near branches of 64-bit code while nothing else can show in the trace: the same packets as those of
//! `Packetizer::instruction`, without the checks whose results cannot have changed.

use pugmark_decoder_core::packet::Packet;

use super::Packetizer;
use crate::branch::InstructionKind;
use crate::intel::registers::ctl;
use crate::{Context, ExecMode};

impl Packetizer {
    /// Returns true if near branches show in the trace in the state `at`, for any target, and no other packet can be
    /// due than a PSB+ before [`Self::quiet_until`]: PacketEn is set, no address is filtered, and the internal buffer
    /// has not overflowed.
    pub(crate) fn traces_near_branches(&self, at: &Context) -> bool {
        at.mode == ExecMode::Bits64
            && self.packet_en()
            && self.filter.is_open()
            && self.ctl & ctl::DIS_TNT == 0
            && !self.in_c_state
            && !self.stream.overflowed()
    }

    /// Returns a time before which no packet is due for the time alone.
    pub(crate) fn quiet_until(&self) -> u64 {
        self.stream.clock.quiet_until()
    }

    /// Handles a near branch that retired before [`Self::quiet_until`], while [`Self::traces_near_branches`].
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
