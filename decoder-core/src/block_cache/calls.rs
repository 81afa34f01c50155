//! The calls that have not returned, with the blocks that they return to.

use super::{node::Node, store::View};
use crate::ret_stack::ReturnStack;

const DEPTH: usize = ReturnStack::DEPTH;

/// A [`ReturnStack`], with the block at each return address and the block with the call.
///
/// While the block at a return address is known, the address in the stack is stale: the block's address is valid.
#[derive(Debug)]
pub(super) struct CachedCalls {
    stack: ReturnStack,
    /// The block at the return address, and in the high half the block with the call; 0 where unknown.
    blocks: [u64; DEPTH],
}

/// The position in the stack, apart from the stack so that it can be in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Top {
    /// The index of the next address; only its lowest bits count.
    at: usize,
    len: usize,
}

impl Top {
    /// Returns true if the stack is empty.
    #[inline(always)]
    pub(super) const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns true if there are that many calls, and room for `more`.
    #[inline(always)]
    pub(super) const fn has_room(self, calls: usize, more: usize) -> bool {
        calls <= self.len && self.len + more <= DEPTH
    }
}

impl CachedCalls {
    pub(super) const fn new() -> Self {
        Self { stack: ReturnStack::new(), blocks: [0; DEPTH] }
    }

    /// Sets these calls, whose blocks are not known. Returns the position in the stack.
    pub(super) fn enter(&mut self, returns: &ReturnStack) -> Top {
        self.stack.copy_from(returns);
        self.blocks.fill(0);
        let (_, at, len) = self.stack.parts();
        Top { at, len }
    }

    /// Adds the calls of a block, without the last one unless `all` is set.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn push(&mut self, top: &mut Top, view: &View<'_>, caller: u32, node: Node<'_>, all: bool) {
        if node.site() != 0 && all && !node.has_several_calls() {
            self.push_block(top, caller, node.site());
        } else {
            *top = self.push_each(*top, view, caller, node, all);
        }
    }

    #[inline(never)]
    fn push_each(&mut self, mut top: Top, view: &View<'_>, caller: u32, node: Node<'_>, all: bool) -> Top {
        let mut left = view.returns(&view.body(caller));
        while let Some(address) = left.next() {
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

    /// Adds a call that returns to `address`, where no block is known yet. `caller` is the block with the call if this
    /// is its last call, or else 0.
    fn push_address(&mut self, top: &mut Top, caller: u32, address: u64) {
        self.stack.parts().0[top.at % DEPTH] = address;
        self.push_block(top, caller, 0);
    }

    /// Removes the last call that has not returned. Returns the block at its return address, or 0, and the block with
    /// the call, or 0; `None` if there is no call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn pop(&self, top: &mut Top) -> Option<(u32, u32)> {
        top.len = top.len.checked_sub(1)?;
        top.at = top.at.wrapping_sub(1);
        let blocks = self.blocks[top.at % DEPTH];
        Some((blocks as u32, (blocks >> 32) as u32))
    }

    /// Returns 0 if the calls below the first `below` return to these blocks; a 0 in `sites` matches any block.
    #[inline(always)]
    pub(super) fn differ(&self, top: Top, below: usize, sites: [u32; 2]) -> u32 {
        let differ = |number: usize, site: u32| {
            let there = self.blocks[top.at.wrapping_sub(below + number + 1) % DEPTH] as u32;
            // A branch would often be mispredicted, so this is a mask: all bits, or none for a 0.
            (there ^ site) & ((site | site.wrapping_neg()) as i32 >> 31) as u32
        };
        differ(0, sites[0]) | differ(1, sites[1])
    }

    /// Removes `popped` calls, and adds the first `pushed` of those that return to these blocks. There must be as many
    /// to remove, and room for all four.
    #[inline(always)]
    pub(super) fn replace(&mut self, top: &mut Top, popped: usize, pushed: usize, sites: [u32; 4]) {
        let at = top.at.wrapping_sub(popped);
        let mut set = |number: usize| self.blocks[at.wrapping_add(number) % DEPTH] = sites[number].into();
        set(0);
        set(1);
        if pushed > 2 {
            set(2);
            set(3);
        }
        *top = Top { at: at.wrapping_add(pushed), len: top.len + pushed - popped };
    }

    /// Returns the return address of the call that was removed last, if no block was known.
    pub(super) fn popped(&mut self, top: Top) -> u64 {
        self.stack.parts().0[top.at % DEPTH]
    }

    /// Forgets the blocks, and takes their addresses from `view`.
    pub(super) fn forget_blocks(&mut self, top: Top, view: View<'_>) {
        for below in 1..=top.len {
            let at = top.at.wrapping_sub(below) % DEPTH;
            let site = self.blocks[at] as u32;
            if site != 0 {
                self.stack.parts().0[at] = view.ip(site);
            }
        }
        self.blocks.fill(0);
    }

    /// Writes the stack with all addresses to `returns`.
    pub(super) fn settle(&mut self, top: Top, view: View<'_>, returns: &mut ReturnStack) {
        self.forget_blocks(top, view);
        self.stack.set_place(top.at, top.len);
        returns.copy_from(&self.stack);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_cache::{
        node::{Body, NodeMut, Words, halves},
        store::{BlockCache, WORDS_PER_BLOCK},
    };

    extern crate std;
    use std::{vec, vec::Vec};

    /// The number of calls in each block.
    const CALLS: [u8; 4] = [1, 1, 2, 3];

    /// Adds blocks with calls to different return addresses, and a block at each last return address.
    fn blocks(cache: &mut BlockCache<'_>) -> Vec<(u32, Vec<u64>, u32)> {
        let mut segment = 0;
        let mut add = |cache: &mut BlockCache<'_>, ip, returns: &[u64]| {
            let place = cache.find(ip).expect_err("it is new");
            let number = cache.add(place, ip).expect("there is room");
            let calls = returns.len() as u8;
            let body = Body { ip, end_ip: ip, insns: 1, section: 0, segment, segments: 1, calls, size: 1 };
            segment += 1;
            for to in returns {
                let [low, high] = halves(*to);
                *cache.segments.get_mut(segment as usize).expect("there is room") = [low, high, 0, 0];
                segment += 1;
            }
            cache.set_body(number, &body);
            cache.change(number, |node| node.set_calls(calls));
            number
        };
        let mut all = vec![];
        for (calls, base) in CALLS.into_iter().zip((0xffff_8000_0000_1000_u64..).step_by(0x1000)) {
            let returns: Vec<u64> = (1..=u64::from(calls)).map(|call| base + 0x10 * call).collect();
            let caller = add(cache, base, &returns);
            let site = add(cache, returns[returns.len() - 1], &[]);
            all.push((caller, returns, site));
        }
        all
    }

    #[test]
    fn calls_come_back_in_order_whether_or_not_the_blocks_after_them_are_known() {
        let mut memory = vec![0; 60 * WORDS_PER_BLOCK];
        let mut cache = BlockCache::new(&mut memory);
        let blocks = blocks(&mut cache);
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..300 {
            let mut calls = CachedCalls::new();
            let mut top = calls.enter(&ReturnStack::new());
            // The expected addresses, for each the block there if it was known, and the block with the call.
            let mut expected: Vec<(u64, u32, u32)> = vec![];
            for _ in 0..rng.usize(1..150) {
                let (caller, returns, site) = &blocks[rng.usize(..blocks.len())];
                let known = if rng.bool() { *site } else { 0 };
                cache.change(*caller, |node: &mut NodeMut<'_>| node.set_site(known));
                match rng.u8(..8) {
                    0..4 => {
                        let all = rng.u8(..4) > 0;
                        calls.push(&mut top, &cache.view(), *caller, cache.view().node(*caller), all);
                        let last = returns.len() - 1;
                        expected.extend(returns[..last].iter().map(|ip| (*ip, 0, 0)));
                        expected.extend(all.then_some((returns[last], known, *caller)));
                        expected.drain(..expected.len().saturating_sub(DEPTH));
                    }
                    4 => {
                        calls.forget_blocks(top, cache.view());
                        expected.iter_mut().for_each(|(_, site, caller)| (*site, *caller) = (0, 0));
                    }
                    _ => {
                        let (popped, wanted) = (calls.pop(&mut top), expected.pop());
                        assert_eq!(popped, wanted.map(|(_, site, caller)| (site, caller)));
                        match wanted {
                            Some((ip, 0, _)) => assert_eq!(calls.popped(top), ip),
                            Some((ip, site, _)) => assert_eq!(cache.view().ip(site), ip),
                            None => {}
                        }
                    }
                }
            }
            let mut stack = ReturnStack::new();
            calls.settle(top, cache.view(), &mut stack);
            let found: Vec<u64> = core::iter::from_fn(|| stack.pop()).collect();
            assert!(found.iter().eq(expected.iter().rev().map(|(ip, ..)| ip)), "{found:x?} {expected:x?}");
        }
    }

    #[test]
    fn a_node_says_whether_it_has_calls_and_whether_it_has_several() {
        for calls in 0..4 {
            let mut words: Words = [0; 8];
            NodeMut(&mut words).set_calls(calls);
            let node = Node(&words);
            assert_eq!((node.has_calls(), node.has_several_calls()), (calls > 0, calls > 1), "{calls}");
        }
    }
}
