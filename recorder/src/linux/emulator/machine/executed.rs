//! Reports what a virtual processor has executed to the tracing hardware, if that is on.

use super::{blocks::MachineBlock, frame::Came, vcpu::Vcpu};
use crate::linux::{RecordError, block::Block, switch::Turn};
use pugmark_model::{Context, DeliveryKind};

impl Vcpu<'_> {
    /// Reports the end of a block, and the event after it, if there was one; `after` is the state at the next block.
    pub(super) fn report(
        &mut self,
        before: &MachineBlock,
        came: Came,
        after: Context,
    ) -> Result<(), RecordError> {
        let (retired, kind, vector, at) = match came {
            Came::ByItself { retired } => return self.retire(before, retired, after),
            Came::Event { retired, kind, vector, at } => (retired, kind, vector, at),
        };
        // A far transfer has changed the level; the event's frame says to which one.
        let interrupted = Context { cpl: at.cpl.unwrap_or(before.cpl), ..before.context(at.ip, self.cr3.1) };
        self.retire(before, retired, interrupted)?;
        let from =
            if retired == before.block.len() { interrupted } else { before.context(at.ip, self.cr3.0) };
        // Before an interrupt, the instruction was not reached.
        if kind != DeliveryKind::Interrupt {
            self.turn(from)?;
        }
        match &mut self.part {
            _ if self.budget.get() == 0 => {}
            Some(part) if self.switch.is_on() => part.pt_unit.deliver_at(kind, vector, from, after),
            _ => self.clock.set(self.clock.get() + 1),
        }
        Ok(())
    }

    /// Reports that the first instructions of a block retired, and the state after them. At the limit it is fewer.
    pub(super) fn retire(
        &mut self,
        before: &MachineBlock,
        count: usize,
        after: Context,
    ) -> Result<(), RecordError> {
        let block = &before.block;
        let Some(last) = count.checked_sub(1) else { return Ok(()) };
        if self.budget.get() <= count as u64 || !self.is_quiet(block, count) {
            return self.retire_each(before, count, after);
        }
        self.switch.pass(count as u64);
        match &mut self.part {
            Some(part) if self.switch.is_on() => {
                let straight = (0..last).map(|n| (block.ip(n), block.instruction(n)));
                let context = before.context(block.ip(last), self.cr3.0);
                part.pt_unit.retire_straight_at(context, straight, block.ip(last));
                part.pt_unit.retire_at(context, after, block.instruction(last));
                self.budget.set(self.budget.get() - count as u64);
            }
            _ => self.clock.set(self.clock.get() + count as u64),
        }
        Ok(())
    }

    /// Reports the instructions one by one: the limit or a turn of the switch may be reached.
    fn retire_each(
        &mut self,
        before: &MachineBlock,
        count: usize,
        after: Context,
    ) -> Result<(), RecordError> {
        let block = &before.block;
        for n in 0..count {
            let at = before.context(block.ip(n), self.cr3.0);
            self.turn(at)?;
            if self.budget.get() == 0 {
                break;
            }
            let next = if n + 1 == count { after } else { Context { ip: block.ip(n + 1), ..at } };
            self.switch.pass(1);
            match &mut self.part {
                Some(part) if self.switch.is_on() => {
                    part.pt_unit.retire_at(at, next, block.instruction(n));
                    self.budget.set(self.budget.get() - 1);
                }
                _ => self.clock.set(self.clock.get() + 1),
            }
            if self.budget.get() == 0 {
                self.stopped_at = Some(next);
                break;
            }
        }
        Ok(())
    }

    /// Returns true if the switch is not turned by the first instructions of a block.
    pub(super) fn is_quiet(&self, block: &Block, count: usize) -> bool {
        self.switch.quiet_for() >= count as u64 && !self.switch.place().is_some_and(|place| block.has(place))
    }

    /// Starts or stops tracing before an instruction, if that is where.
    fn turn(&mut self, at: Context) -> Result<(), RecordError> {
        let Some(turn) = self.switch.turn_before(at.ip) else { return Ok(()) };
        match (turn, &mut self.part) {
            (Turn::On, Some(part)) => part.pt_unit.go_on_at(at)?,
            (Turn::On, None) => self.begin_part(at)?,
            (Turn::Off, Some(part)) => part.pt_unit.finish_at(at)?,
            (Turn::Off, None) => {}
        }
        if self.switch.has_ended() {
            self.stopped_at = Some(at);
            self.budget.set(0);
        }
        Ok(())
    }
}
