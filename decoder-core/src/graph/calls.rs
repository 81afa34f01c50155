//! The calls that have not returned, with the blocks that they return to.

use super::{
    node::{Node, whole},
    store::View,
};
use crate::ret_stack::ReturnStack;

const DEPTH: usize = ReturnStack::DEPTH;

/// A [`ReturnStack`], and beside each return address the block there and the block with the call.
///
/// While the block at a return address is known, the address in the stack is not up to date: it is the block's.
#[derive(Debug)]
pub(super) struct GraphCalls {
    stack: ReturnStack,
    /// The block at the return address, and in the high half the block with the call; 0 where they are unknown.
    blocks: [u64; DEPTH],
}

/// The place in the stack, apart from the stack so that it can be in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Top {
    /// Where the next address goes; only its lowest bits count.
    at: usize,
    len: usize,
}

impl GraphCalls {
    pub(super) const fn new(stack: ReturnStack) -> Self {
        Self { stack, blocks: [0; DEPTH] }
    }

    pub(super) const fn top(&mut self) -> Top {
        let (_, at, len) = self.stack.parts();
        Top { at, len }
    }

    /// Adds the calls of a block; without the last one if `all` is not set.
    #[inline(always)]
    pub(super) fn push(&mut self, top: &mut Top, view: &View<'_>, caller: u32, node: Node<'_>, all: bool) {
        if node.site() != 0 && all && !node.has_several_calls() {
            self.push_block(top, caller, node.site());
        } else {
            *top = self.push_each(*top, view, caller, node, all);
        }
    }

    #[inline(never)]
    fn push_each(&mut self, mut top: Top, view: &View<'_>, caller: u32, node: Node<'_>, all: bool) -> Top {
        let mut left = view.returns(&view.body(caller)).iter();
        while let Some(&[low, high, ..]) = left.next() {
            let address = whole([low, high]);
            match (left.len(), all, node.site()) {
                (1.., ..) => self.push_address(&mut top, 0, address),
                (0, false, _) => {}
                (0, true, 0) => self.push_address(&mut top, caller, address),
                (0, true, site) => self.push_block(&mut top, caller, site),
            }
        }
        top
    }

    #[inline(always)]
    fn push_block(&mut self, top: &mut Top, caller: u32, site: u32) {
        self.blocks[top.at % DEPTH] = u64::from(site) | u64::from(caller) << 32;
        top.at = top.at.wrapping_add(1);
        top.len = (top.len + 1).min(DEPTH);
    }

    /// A call that returns to `address`, where no block is known yet. `caller` is the block with the call if it is the
    /// last call there, or else 0.
    fn push_address(&mut self, top: &mut Top, caller: u32, address: u64) {
        self.stack.parts().0[top.at % DEPTH] = address;
        self.push_block(top, caller, 0);
    }

    /// Removes the last call that has not returned. Returns the block at its return address, or 0, and the block with
    /// the call, or 0; `None` if there is no call.
    #[inline(always)]
    pub(super) fn pop(&self, top: &mut Top) -> Option<(u32, u32)> {
        top.len = top.len.checked_sub(1)?;
        top.at = top.at.wrapping_sub(1);
        let blocks = self.blocks[top.at % DEPTH];
        Some((blocks as u32, (blocks >> 32) as u32))
    }

    /// The return address of the call that was removed last, if no block was known.
    pub(super) fn popped(&mut self, top: Top) -> u64 {
        self.stack.parts().0[top.at % DEPTH]
    }

    /// Forgets the blocks, whose addresses are `view`'s.
    pub(super) fn forget_blocks(&mut self, top: Top, view: View<'_>) {
        for below in 1..=top.len {
            let at = top.at.wrapping_sub(below) % DEPTH;
            let site = self.blocks[at] as u32;
            if site != 0 {
                self.stack.parts().0[at] = view.ip(site);
            }
        }
        self.blocks = [0; DEPTH];
    }

    /// The stack with all addresses.
    pub(super) fn settle(mut self, top: Top, view: View<'_>) -> ReturnStack {
        self.forget_blocks(top, view);
        self.stack.set_place(top.at, top.len);
        self.stack
    }
}
