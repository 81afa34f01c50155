//! The blocks that a thread has executed, in the form in which they are followed quickly: most blocks end by a near
//! branch, and most branches lead where they can lead.

use super::{
    super::{
        block::{Block, Exit},
        pt_unit::{FETCH_EVERY, PtUnit},
        switch::Switch,
    },
    hash_thread::BlockTruth,
    plugin::wire::Ring,
};
use pugmark_model::{Context, intel::NearBranch};
use std::{cell::Cell, sync::atomic::Ordering::Relaxed};

/// Blocks by their numbers.
#[derive(Debug, Default)]
pub(super) struct NotedBlocks {
    blocks: Vec<Option<NotedBlock>>,
}

/// A block whose code is known. Most of them are seldom in a cache, so each is in one line of it.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct NotedBlock {
    pub(super) start: u64,
    end: u64,
    /// Where its branch leads, if it is a direct one.
    target: u64,
    /// The number of its instructions.
    count: u32,
    /// The branch at its end.
    branch: Option<NearBranch>,
    lead: Lead,
}

/// Where a block leads, if nothing but its end is the reason.
#[derive(Clone, Copy, Debug)]
enum Lead {
    /// To the next instruction.
    Next,
    NextOrTarget,
    Target,
    Called,
    /// Anywhere but to a signal's handler, which may interrupt the program before the next block.
    Anywhere,
    /// Nothing is known.
    Unknown,
}

impl NotedBlocks {
    pub(super) fn insert(&mut self, number: u32, block: &Block) {
        let number = number as usize;
        if self.blocks.len() <= number {
            self.blocks.resize_with(number + 1, || None);
        }
        let last = block.len() - 1;
        let branch = NearBranch::decode(block.instruction(last), block.ip(last));
        let (lead, target) = match (block.exit, branch) {
            (Exit::Next, None) => (Lead::Next, 0),
            (Exit::NextOr(target), Some(_)) => (Lead::NextOrTarget, target),
            (Exit::At(target), Some(_)) => (Lead::Target, target),
            (Exit::Called, Some(_)) => (Lead::Called, 0),
            (Exit::Anywhere, Some(_)) => (Lead::Anywhere, 0),
            _ => (Lead::Unknown, 0),
        };
        let (start, end, count) = (block.start, block.end(), block.len() as u32);
        self.blocks[number] = Some(NotedBlock { start, end, target, count, branch, lead });
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&NotedBlock> {
        self.blocks.get(number as usize)?.as_ref()
    }
}

impl NotedBlock {
    /// Returns the number of its instructions.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.count.into()
    }

    /// Returns true if an address is in the block.
    #[inline]
    pub(super) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.end - self.start
    }

    /// Returns true if all of the block is executed, and nothing but its end is the reason that the program continues
    /// at `next`. `is_handler` returns true for the handlers of a program's signals.
    #[inline]
    pub(super) fn leads_to(&self, next: u64, is_handler: impl Fn(u64) -> bool) -> bool {
        match self.lead {
            Lead::NextOrTarget => next == self.target || next == self.end,
            Lead::Target => next == self.target,
            Lead::Next => next == self.end,
            Lead::Called => true,
            Lead::Anywhere => !is_handler(next),
            Lead::Unknown => false,
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
}

impl Follower<'_> {
    /// Reports what is executed from block `first` on, in the state `context`, as long as one known block leads to
    /// another one. Returns the number of the block that begins then, and how many were executed before it; `None` if
    /// that is still the first one.
    pub(super) fn follow(
        self,
        noted: &NotedBlocks,
        first: u32,
        context: Context,
        is_handler: impl Fn(u64) -> bool,
    ) -> Option<(u32, usize)> {
        let Self { ring, pt_unit, switch, budget } = self;
        // Neither the limit nor a turn of the switch may be reached on the way.
        let most = budget.get().min(switch.quiet_for().saturating_add(1));
        let place = switch.place();
        let words = ring.unread();
        let words = &words[..words.len().min(FETCH_EVERY as usize)];
        let (mut executed, mut instructions) = (0, 0);
        pt_unit.with_near_branches(context, |branches, truth, tsc| {
            let Some(mut block) = noted.get(first) else { return };
            let begin = *tsc;
            let until = begin.saturating_add(most).min(branches.quiet_until());
            let mut now = begin;
            for word in words {
                // No message is the number of a block.
                let Some(next) = noted.get(word.load(Relaxed)) else { break };
                let ends = now + block.count();
                if ends >= until
                    || !block.leads_to(next.start, &is_handler)
                    || place.is_some_and(|place| block.contains(place))
                {
                    break;
                }
                executed += 1;
                now = ends;
                let goes_on =
                    block.branch.is_none_or(|branch| branches.retire(branch, block.end, next.start, now));
                block = next;
                if !goes_on {
                    break;
                }
            }
            (*tsc, instructions) = (now, now - begin);
            truth.add_blocks(first, &words[..executed], instructions);
        });
        let number = words[..executed].last()?.load(Relaxed);
        ring.take_words(executed);
        budget.set(budget.get() - instructions);
        switch.pass(instructions);
        Some((number, executed))
    }
}
