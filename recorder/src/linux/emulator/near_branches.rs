//! The blocks that a thread has executed, in the form in which they are followed quickly: most blocks end by a near
//! branch, and most branches lead where they can lead.

use super::super::block::{Block, Exit};
use pugmark_model::intel::NearBranch;

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
    pub(super) branch: Option<NearBranch>,
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
