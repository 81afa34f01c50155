//! Bridges gaps in the records where code ran in a privilege level that is not traced.

use super::BranchRecord;
use super::block::{BtsBlockDecoder, Left, RecordPosition, StraightRun, is_software_interrupt};
use super::path::{Cause, PathEnd};
use crate::event::EventKind;

impl BtsBlockDecoder<'_> {
    /// Goes to a record across code in the level that is not traced; `false` if such code cannot explain the record.
    pub(super) fn bridge(&mut self, offset: u64, record: BranchRecord, at: u64) -> bool {
        let BranchRecord { from, to, .. } = record;
        // The record before led out of the traced level, and there is no record of the way back.
        if let Left::ToReturn(back) = self.left
            && self.paths.reach(back, from).is_ok()
        {
            self.enter(offset, record, back);
            return true;
        }
        // After a far return the level is not known. A branch without a record shows that it is the one that is not
        // traced.
        if self.left == Left::ForGood {
            self.enter(offset, record, from);
            return true;
        }
        // There is no record of the way out of the traced level, and this record leads back into it: to the place of an
        // interrupt, or after a far transfer.
        let (kind, goes_on) = if let Ok(leg) = self.paths.reach(at, to) {
            self.way = Some(StraightRun { at, goal: to, through: false, leg: Some(leg) });
            (EventKind::AsyncDisabled { at: to }, to)
        } else if let PathEnd { ip, cause: Cause::Branch(insn) } = self.paths.end(at)
            && insn.class.is_far()
        {
            let through = !is_software_interrupt(insn.op);
            self.way = Some(StraightRun { at, goal: ip, through, leg: None });
            (EventKind::Disabled, insn.next(ip))
        } else {
            return false;
        };
        let enabled = EventKind::Enabled { resumed: goes_on == to };
        self.after = [Some(self.event(kind, None, offset)), Some(self.event(enabled, Some(to), offset))];
        self.arrive(to, None, Left::No);
        true
    }

    /// Begins a run at `at` that leads to a record.
    fn enter(&mut self, offset: u64, record: BranchRecord, at: u64) {
        self.position = Some(RecordPosition { at, begins: Some(self.left == Left::ToReturn(at)) });
        self.again = Some((offset, record));
    }
}
