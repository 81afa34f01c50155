//! Reports the code that a thread has executed to the tracing hardware, if it is on.

use super::{
    super::super::{
        RecordError,
        block::{Block, Exit},
        pt_unit::{Next, user},
        switch::Turn,
    },
    super::near_branches::Follower,
    MESSAGE, MODE, Process, TURN, Thread,
};
use pugmark_model::DeliveryKind;

impl Thread<'_> {
    /// Follows the program while it goes from a block that is known to another one, as the first one's end says.
    /// Returns the number of words read.
    pub(super) fn follow_near_branches(&mut self, process: &Process) -> usize {
        if self.over || self.held.is_some() || self.partial.is_some() || self.executes {
            return 0;
        }
        if !self.switch.is_on() {
            return self.skip(process);
        }
        let (Some(part), Some((number, _))) = (&mut self.part, &self.current) else { return 0 };
        let is_handler = |ip| process.is_handler(ip);
        let follower = Follower {
            ring: &mut self.ring,
            pt_unit: &mut part.pt_unit,
            switch: &mut self.switch,
            budget: &self.budget,
        };
        let Some((number, executed)) = follower.follow(&self.noted, *number, user(0, MODE), is_handler)
        else {
            return 0;
        };
        self.current = process.known_block(number).map(|block| (number, block));
        executed
    }

    /// Passes over what the program executes while nothing is traced, as [`follow_near_branches`] follows it.
    /// Returns the number of words read.
    ///
    /// [`follow_near_branches`]: Self::follow_near_branches
    fn skip(&mut self, process: &Process) -> usize {
        let Some((number, _)) = self.current.as_ref().filter(|_| !self.untraced.in_kernel) else { return 0 };
        let (mut number, before, place) = (*number, self.switch.quiet_for(), self.switch.place());
        let Some(mut block) = self.passed.get(number) else { return 0 };
        let is_handler = |ip| process.is_handler(ip);
        let (mut read, mut left) = (0, before);
        while read < TURN {
            let Some(word) = self.ring.peek().filter(|word| word & MESSAGE == 0) else { break };
            let Some(next) = self.passed.get(word) else { break };
            // The code of a block in which the switch turns is noted, and that is not done here.
            let turns = left < block.count() + next.count()
                || place.is_some_and(|place| block.contains(place) || next.contains(place));
            if turns || !block.leads_to(next.start, is_handler) {
                break;
            }
            self.ring.take_word();
            read += 1;
            left -= block.count();
            (number, block) = (word, next);
        }
        if read > 0 {
            self.switch.pass(before - left);
            self.untraced.pass(before - left, false);
            self.current = process.known_block(number).map(|block| (number, block));
        }
        read
    }

    /// Returns true if the switch is not turned by the first instructions of a block.
    pub(super) fn is_quiet(&self, block: &Block, count: usize) -> bool {
        self.switch.quiet_for() >= count as u64 && !self.switch.place().is_some_and(|place| block.has(place))
    }

    /// Starts or stops tracing before the instruction at `ip`, if that is where.
    fn turn(&mut self, ip: u64) -> Result<(), RecordError> {
        let Some(turn) = self.switch.turn_before(ip) else { return Ok(()) };
        match (turn, &mut self.part) {
            (Turn::On, Some(part)) => part.pt_unit.turn_on(self.untraced.in_kernel)?,
            (Turn::On, None) if !self.lacks_functions => self.begin_part()?,
            (Turn::Off, Some(part)) => self.untraced.in_kernel = part.pt_unit.turn_off((ip, MODE))?,
            _ => {}
        }
        if self.switch.has_ended() {
            self.stopped_at = ip;
            self.budget.set(0);
        }
        Ok(())
    }

    /// Reports that the first instructions of a block retired, and that the program continued at `next`. At the limit
    /// it is fewer.
    pub(super) fn retire(&mut self, block: &Block, count: usize, next: u64) -> Result<(), RecordError> {
        let Some(last) = count.checked_sub(1) else { return Ok(()) };
        let next = match block.exit {
            Exit::SystemCall if count == block.len() => Next::Kernel,
            _ => Next::User(next, MODE),
        };
        if self.budget.get() <= count as u64 || !self.is_quiet(block, count) {
            return self.retire_each(block, count, next);
        }
        self.switch.pass(count as u64);
        match &mut self.part {
            Some(part) if self.switch.is_on() => {
                let before = part.pt_unit.count();
                let straight = (0..last).map(|n| (block.ip(n), block.instruction(n)));
                part.pt_unit.retire_straight(MODE, straight, block.ip(last));
                part.pt_unit.retire((block.ip(last), MODE), next, block.instruction(last));
                self.budget.set(self.budget.get() - (part.pt_unit.count() - before));
            }
            _ => self.untraced.pass(count as u64, next == Next::Kernel),
        }
        Ok(())
    }

    /// Reports the instructions one by one: the limit or a turn of the switch may be reached.
    fn retire_each(&mut self, block: &Block, count: usize, next: Next) -> Result<(), RecordError> {
        for n in 0..count {
            self.turn(block.ip(n))?;
            if self.budget.get() == 0 {
                break;
            }
            let next = if n + 1 == count { next } else { Next::User(block.ip(n + 1), MODE) };
            self.switch.pass(1);
            match &mut self.part {
                Some(part) if self.switch.is_on() => {
                    let before = part.pt_unit.count();
                    part.pt_unit.retire((block.ip(n), MODE), next, block.instruction(n));
                    self.budget.set(self.budget.get() - (part.pt_unit.count() - before));
                }
                _ => self.untraced.pass(1, next == Next::Kernel),
            }
            if self.budget.get() == 0 {
                if let Next::User(ip, _) = next {
                    self.stopped_at = ip;
                }
                break;
            }
        }
        Ok(())
    }

    pub(super) fn deliver(&mut self, kind: DeliveryKind, vector: u8, at: u64) -> Result<(), RecordError> {
        // Before an interrupt, the instruction was not reached.
        if kind != DeliveryKind::Interrupt {
            self.turn(at)?;
        }
        match &mut self.part {
            _ if self.budget.get() == 0 => {}
            Some(part) if self.switch.is_on() => part.pt_unit.deliver(kind, vector, (at, MODE)),
            _ => self.untraced.pass(1, true),
        }
        Ok(())
    }
}
