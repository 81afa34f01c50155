//! Transactions: MODE.TSX, with the FUP and the TIP that it binds to. Source: SDM vol. 3, Intel Processor Trace, "MODE
//! Packets" (MODE.TSX), "Packet Generation under Different Enable Conditions" (XBEGIN, XEND, XABORT).
//!
//! The manual is not of one mind, and the model chooses:
//! - While FilterEn is clear, the definition of the packet lets a MODE.TSX stand alone for each change; the table has
//!   one for aborts only. Here each change has one: otherwise a reader would take the state before the filtered code
//!   for the state after it.
//! - If an abort leaves the traced code, the table has no FUP before TIP.PGD. The definition says that with PacketEn
//!   set a FUP always follows a MODE.TSX, so here it does.
//! - After an abort no RET is compressed that returns to a CALL before it: the manual does not say if the stack of
//!   CALLs is rolled back.

use pugmark_decoder_core::packet::{ModeTsx, Packet};

use super::{Packetizer, TransferKind};
use crate::intel::registers::ctl;
use crate::intel::transaction::{TransactionChange, TransactionStep};

impl Packetizer {
    /// Handles a change of the transactional state.
    pub(crate) fn change_transaction(&mut self, step: &TransactionStep) {
        let abort = step.change == TransactionChange::Abort;
        self.in_tx = step.change == TransactionChange::Begin;
        if !self.trigger_en {
            return;
        }
        self.wake(step.tsc, false);
        self.stream.tick(step.tsc);
        self.mode_tsx(abort);
        if abort {
            self.rets.clear();
            self.transfer(TransferKind::Event, &step.before, &step.after);
        } else if self.packet_en() {
            self.stream.ip(step.before.ip, Packet::Fup);
        }
        // A MODE.TSX whose FUP is lost has no effect.
        self.lost.tsx |= self.stream.overflowed();
    }

    /// Emits MODE.TSX if the enables allow it.
    pub(super) fn mode_tsx(&mut self, abort: bool) {
        if self.context_en && self.ctl & ctl::BRANCH_EN != 0 {
            self.lost.tsx = !self.stream.packet(Packet::ModeTsx(ModeTsx { in_tx: self.in_tx, abort }));
        }
    }
}
