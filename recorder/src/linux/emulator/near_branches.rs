//! The blocks that a thread has executed, in the form in which they are followed quickly: most blocks end by a near
//! branch, and most branches lead where they can lead.

use super::{
    super::{
        block::{Block, Exit},
        pt_unit::{FETCH_EVERY, PtUnit},
        switch::Switch,
    },
    hash_thread::BlockTruth,
    plugin::wire::{MESSAGE, Ring},
};
use pugmark_model::{Context, intel::NearBranch};
use std::cell::Cell;

/// Blocks by their numbers.
#[derive(Debug, Default)]
pub(super) struct NotedBlocks {
    blocks: Vec<Option<NotedBlock>>,
}

/// A block whose code is known.
#[derive(Debug)]
pub(super) struct NotedBlock {
    pub(super) start: u64,
    end: u64,
    exit: Exit,
    /// The number of its instructions.
    pub(super) count: u64,
    /// The branch at its end.
    branch: Option<NearBranch>,
}

impl NotedBlocks {
    pub(super) fn insert(&mut self, number: u32, block: &Block) {
        let number = number as usize;
        if self.blocks.len() <= number {
            self.blocks.resize_with(number + 1, || None);
        }
        let last = block.len() - 1;
        self.blocks[number] = Some(NotedBlock {
            start: block.start,
            end: block.end(),
            exit: block.exit,
            count: block.len() as u64,
            branch: NearBranch::decode(block.instruction(last), block.ip(last)),
        });
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&NotedBlock> {
        self.blocks.get(number as usize)?.as_ref()
    }
}

impl NotedBlock {
    /// Returns true if an address is in the block.
    #[inline]
    pub(super) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.end - self.start
    }

    /// Returns true if all of the block is executed, and nothing but its end is the reason that the program continues
    /// at `next`. `is_handler` returns true for the handlers of a program's signals.
    #[inline]
    pub(super) fn leads_to(&self, next: u64, is_handler: impl Fn(u64) -> bool) -> bool {
        match self.exit {
            Exit::NextOr(target) => self.branch.is_some() && (next == target || next == self.end),
            Exit::At(target) => self.branch.is_some() && next == target,
            Exit::Next => self.branch.is_none() && next == self.end,
            Exit::Called => self.branch.is_some(),
            // A signal's handler may interrupt the program before the next block.
            Exit::Anywhere => self.branch.is_some() && !is_handler(next),
            Exit::SystemCall | Exit::Interrupt(_) | Exit::Repeated | Exit::OldCall | Exit::Shown => false,
        }
    }
}

/// The parts of a thread or a processor that follow the blocks in its ring.
pub(super) struct Follower<'a> {
    pub(super) ring: &'a mut Ring,
    pub(super) pt_unit: &'a mut PtUnit<BlockTruth>,
    pub(super) switch: &'a mut Switch,
    /// The number of instructions up to the limit.
    pub(super) budget: &'a Cell<u64>,
    /// Memory for the numbers of the blocks that were executed.
    pub(super) executed: &'a mut Vec<u32>,
}

impl Follower<'_> {
    /// Reports what is executed from block `number` on, in the state `context`, as long as one known block leads to
    /// another one. Returns the number of the block that begins then; `None` if that is still the first one.
    pub(super) fn follow(
        self,
        noted: &NotedBlocks,
        mut number: u32,
        context: Context,
        is_handler: impl Fn(u64) -> bool,
    ) -> Option<u32> {
        let Self { ring, pt_unit, switch, budget, executed } = self;
        // Neither the limit nor a turn of the switch may be reached on the way.
        let before = budget.get().min(switch.quiet_for().saturating_add(1));
        let place = switch.place();
        let mut left = before;
        executed.clear();
        pt_unit.with_near_branches(context, |branches, truth, tsc| {
            let Some(mut block) = noted.get(number) else { return };
            let quiet_until = branches.quiet_until();
            for _ in 0..FETCH_EVERY {
                let Some(word) = ring.peek().filter(|word| word & MESSAGE == 0) else { break };
                let Some(next) = noted.get(word) else { break };
                if !block.leads_to(next.start, &is_handler)
                    || left <= block.count
                    || *tsc + block.count >= quiet_until
                    || place.is_some_and(|place| block.contains(place))
                {
                    break;
                }
                ring.take_word();
                executed.push(number);
                left -= block.count;
                *tsc += block.count;
                let goes_on = block.branch.is_none_or(|branch| branches.retire(&branch, next.start, *tsc));
                (number, block) = (word, next);
                if !goes_on {
                    break;
                }
            }
            truth.add_blocks(executed, before - left);
        });
        if executed.is_empty() {
            return None;
        }
        budget.set(budget.get() - (before - left));
        switch.pass(before - left);
        Some(number)
    }
}
