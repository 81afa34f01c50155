//! What is done with what was executed.

use crate::{block::Block, event::Event, lost::Lost, time::Span};

/// Receives what a trace says was executed, in order.
///
/// The constants say what a sink wants. What it does not want costs nothing.
pub trait ExecutionSink {
    /// Whether [`insns`](Self::insns) is called.
    const INSNS: bool = false;
    /// Whether [`block`](Self::block) is called.
    const BLOCKS: bool = false;
    /// Whether [`edge`](Self::edge) is called.
    const EDGES: bool = false;
    /// Whether edges may come later, in any order, and several at once by [`edges`](Self::edges). All have come when
    /// the visit ends. With it, parts of the trace that come again are only counted: up to twice as fast.
    /// It has no effect on a sink that takes instructions or blocks, or fills.
    const COUNTS: bool = false;
    /// Whether [`is_full`](Self::is_full) is asked before each item.
    const FILLS: bool = false;
    /// Whether [`span`](Self::span) is called. It takes longer then; it has no effect on a sink that fills.
    const SPANS: bool = false;

    /// Instructions were executed. A block's instructions come in several calls.
    #[inline(always)]
    fn insns(&mut self, insns: Straight) {
        let _ = insns;
    }

    /// The block that comes next was executed between these packets, as [`BlockDecoder::span`] says of a block.
    ///
    /// [`BlockDecoder::span`]: crate::block::BlockDecoder::span
    #[inline(always)]
    fn span(&mut self, span: Span) {
        let _ = span;
    }

    /// A block was executed. It comes after its instructions.
    #[inline(always)]
    fn block(&mut self, block: &Block) {
        let _ = block;
    }

    /// A block was executed. `edge` stands for it and the block before it, see [`edges`](super::edges).
    #[inline(always)]
    fn edge(&mut self, edge: u16) {
        let _ = edge;
    }

    /// Blocks were executed, `times` of them over the same edge. Called only if [`COUNTS`](Self::COUNTS) is set.
    #[inline(always)]
    fn edges(&mut self, edge: u16, times: u32) {
        for _ in 0..times {
            self.edge(edge);
        }
    }

    /// Something else happened.
    fn event(&mut self, event: &Event);

    /// Something is missing here; only streams of slices say so, see [`resume`](crate::resume).
    #[inline]
    fn lost(&mut self, lost: &Lost) {
        let _ = lost;
    }

    /// The decoder has come to this offset of the trace. It is called now and then, to show progress.
    #[inline(always)]
    fn reached(&mut self, offset: u64) {
        let _ = offset;
    }

    /// Whether the sink takes nothing more: then the decoder stops, and can go on later.
    #[inline(always)]
    fn is_full(&self) -> bool {
        false
    }
}

/// Instructions that follow each other in memory: at most 16.
///
/// ```
/// use pugmark_decoder_core::graph::Straight;
///
/// let insns = Straight { ip: 0x1000, lengths: 0x152 };
/// assert!(insns.eq([0x1000, 0x1002, 0x1007]));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Straight {
    /// The address of the first one.
    pub ip: u64,
    /// Their lengths in bytes, four bits each, the first one's lowest; zero after the last.
    pub lengths: u64,
}

impl Iterator for Straight {
    type Item = u64;

    /// The address of the next instruction.
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

    // Four at a time while there are as many: fewer ends of the loop for the processor to predict.
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
        // No loop for the others, of which there are three at most: each branch is predicted by its own place.
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

/// Takes nothing.
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
            let insns = Straight { ip, lengths: packed };
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
