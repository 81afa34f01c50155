//! Receivers of executed instructions, blocks and edges, and of events.

use crate::{block::Block, event::Event, lost::Lost, time::Span};

/// A receiver of the instructions, blocks and events that a trace says were executed, in order.
///
/// The constants select the calls. A call that is not selected costs nothing.
pub trait ExecutionSink {
    /// True if [`insns`](Self::insns) is to be called.
    const INSNS: bool = false;
    /// True if [`block`](Self::block) is to be called.
    const BLOCKS: bool = false;
    /// True if [`passes`](Self::passes) is to be called before each block, and [`block`](Self::block) only where that
    /// says so. It has no effect on a sink that takes no blocks.
    const NUMBERS: bool = false;
    /// True if [`edge`](Self::edge) is to be called.
    const EDGES: bool = false;
    /// True if edges may come later, in any order, and several at once by [`edges`](Self::edges). All have come when
    /// the visit ends. Parts of the trace that recur are then only counted: up to twice as fast. It has no effect on a
    /// sink that takes instructions or blocks, or fills.
    const COUNTS: bool = false;
    /// True if [`is_full`](Self::is_full) is to be called before each item.
    const FILLS: bool = false;
    /// True if [`span`](Self::span) is to be called, which takes longer. It has no effect on a sink that fills.
    const SPANS: bool = false;

    /// Receives instructions that were executed. A block's instructions come in several calls.
    #[inline(always)]
    fn insns(&mut self, insns: InstructionRun) {
        let _ = insns;
    }

    /// Receives the packets between which the next block was executed, as [`BlockDecoder::span`] returns them.
    ///
    /// [`BlockDecoder::span`]: crate::block::BlockDecoder::span
    #[inline(always)]
    fn span(&mut self, span: Span) {
        let _ = span;
    }

    /// Receives the number of the next block: from 1 to the cache's [`room`](super::Statistics::room), or 0 if the
    /// cache does not hold the block. Returns true if [`block`](Self::block) is to be called for it: that takes longer.
    #[inline(always)]
    fn passes(&mut self, number: u32) -> bool {
        let _ = number;
        true
    }

    /// Receives how often the cache has forgotten its blocks: when a visit begins, and when the cache forgets them.
    /// While that is the same, a number of this cache stands for the same block.
    #[inline(always)]
    fn numbered(&mut self, generation: u64) {
        let _ = generation;
    }

    /// Receives a block that was executed, after its instructions.
    #[inline(always)]
    fn block(&mut self, block: &Block) {
        let _ = block;
    }

    /// Receives the edge from the previous block to one that was executed, see [`edges`](super::edges).
    #[inline(always)]
    fn edge(&mut self, edge: u16) {
        let _ = edge;
    }

    /// Receives an edge that was taken `times` times. Called only if [`COUNTS`](Self::COUNTS) is set.
    #[inline(always)]
    fn edges(&mut self, edge: u16, times: u32) {
        for _ in 0..times {
            self.edge(edge);
        }
    }

    /// Receives an event.
    fn event(&mut self, event: &Event);

    /// Receives a loss at this place; only streams of slices report one, see [`resume`](crate::resume).
    #[inline]
    fn lost(&mut self, lost: &Lost) {
        let _ = lost;
    }

    /// Receives the offset of the trace that the decoder has reached. Called occasionally, to show progress.
    #[inline(always)]
    fn reached(&mut self, offset: u64) {
        let _ = offset;
    }

    /// Returns true if the sink takes nothing more: the decoder stops then, and can continue later.
    #[inline(always)]
    fn is_full(&self) -> bool {
        false
    }
}

/// Returns true if a sink receives the numbers of blocks.
pub(super) const fn takes_numbers<S: ExecutionSink>() -> bool {
    S::BLOCKS && S::NUMBERS
}

/// Consecutive instructions in memory: at most 16.
///
/// ```
/// use pugmark_decoder_core::block_cache::InstructionRun;
///
/// let insns = InstructionRun { ip: 0x1000, lengths: 0x152 };
/// assert!(insns.eq([0x1000, 0x1002, 0x1007]));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionRun {
    /// The address of the first one.
    pub ip: u64,
    /// Their lengths in bytes, four bits each, the first one's lowest; zero after the last.
    pub lengths: u64,
}

impl Iterator for InstructionRun {
    type Item = u64;

    /// Returns the address of the next instruction.
    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        if self.lengths == 0 {
            return None;
        }
        let ip = self.ip;
        self.ip = ip.wrapping_add(self.lengths & 15);
        self.lengths >>= 4;
        Some(ip)
    }

    // Four at a time while there are as many: the processor has fewer loop ends to predict.
    #[inline(always)]
    fn fold<B, F: FnMut(B, u64) -> B>(self, init: B, mut add: F) -> B {
        let Self { mut ip, mut lengths } = self;
        let mut folded = init;
        while lengths >> 12 != 0 {
            let second = ip.wrapping_add(lengths & 15);
            let third = second.wrapping_add(lengths >> 4 & 15);
            let fourth = third.wrapping_add(lengths >> 8 & 15);
            folded = add(folded, ip);
            folded = add(folded, second);
            folded = add(folded, third);
            folded = add(folded, fourth);
            ip = fourth.wrapping_add(lengths >> 12 & 15);
            lengths >>= 16;
        }
        // No loop for the rest, at most three: each branch is predicted by its own place.
        if lengths != 0 {
            folded = add(folded, ip);
            ip = ip.wrapping_add(lengths & 15);
            if lengths >> 4 != 0 {
                folded = add(folded, ip);
                ip = ip.wrapping_add(lengths >> 4 & 15);
                if lengths >> 8 != 0 {
                    folded = add(folded, ip);
                }
            }
        }
        folded
    }
}

/// A sink that ignores everything.
#[cfg(test)]
pub(super) struct NoSink;

#[cfg(test)]
impl ExecutionSink for NoSink {
    fn event(&mut self, _: &Event) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::vec::Vec;

    #[test]
    fn folding_gives_the_addresses_that_come_one_by_one() {
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..crate::rounds(1_000) {
            let ip = rng.u64(..);
            let lengths: Vec<u64> = (0..round % 17).map(|_| rng.u64(1..16)).collect();
            let packed = lengths.iter().rev().fold(0, |packed, length| packed << 4 | length);
            let insns = InstructionRun { ip, lengths: packed };
            let mut folded = Vec::new();
            insns.for_each(|ip| folded.push(ip));
            let mut one_by_one = Vec::new();
            for ip in insns {
                one_by_one.push(ip);
            }
            assert_eq!(folded, one_by_one, "{insns:x?}");
            assert_eq!(folded.len(), lengths.len(), "{insns:x?}");
        }
    }
}
