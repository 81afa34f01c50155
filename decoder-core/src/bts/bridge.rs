//! Bridges gaps in the records that are caused by code in a privilege level that is not traced.

use super::BranchRecord;
use super::block::{BtsBlockDecoder, LevelExit, RecordPosition, StraightRun, is_software_interrupt};
use super::straight_line::{EarlyEnd, EndCause};
use crate::event::EventKind;

impl BtsBlockDecoder<'_> {
    /// Goes to a record across code in the untraced level; returns `false` if such code cannot explain the record.
    pub(super) fn bridge(&mut self, offset: u64, record: BranchRecord, at: u64) -> bool {
        let BranchRecord { from, to, .. } = record;
        // The previous record led out of the traced level, and there is no record of the way back.
        match self.level_exit {
            LevelExit::ReturnsTo(back) if self.code.reach(back, from).is_ok() => {
                self.enter(offset, record, back);
                return true;
            }
            _ => {}
        }
        // After a far return the level is unknown. A branch without a record shows that this is the level that is not
        // traced.
        if self.level_exit == LevelExit::ReturnUnknown {
            self.enter(offset, record, from);
            return true;
        }
        // There is no record of the way out of the traced level, and this record leads back into it: to the place of an
        // interrupt, or after a far transfer.
        let (kind, goes_on) = if let Ok(first) = self.code.reach(at, to) {
            self.rest = Some(StraightRun { at, goal: to, with_goal: false, first: Some(first) });
            (EventKind::AsyncDisabled { at: to }, to)
        } else {
            match self.code.end(at) {
                EarlyEnd { ip, cause: EndCause::Branch(insn) } if insn.class.is_far() => {
                    let with_goal = !is_software_interrupt(insn.op);
                    self.rest = Some(StraightRun { at, goal: ip, with_goal, first: None });
                    (EventKind::Disabled, insn.next(ip))
                }
                _ => return false,
            }
        };
        let enabled = EventKind::Enabled { resumed: goes_on == to };
        self.after = [Some(self.event(kind, None, offset)), Some(self.event(enabled, Some(to), offset))];
        self.arrive(to, None, LevelExit::NoExit);
        true
    }

    /// Begins a run at `at` that leads to a record.
    fn enter(&mut self, offset: u64, record: BranchRecord, at: u64) {
        self.position =
            Some(RecordPosition { at, begins: Some(self.level_exit == LevelExit::ReturnsTo(at)) });
        self.retry = Some((offset, record));
    }
}
