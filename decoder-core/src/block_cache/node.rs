//! A block of the cache, packed into 32-bit words.

use crate::block::Block;

/// The part of a block that the walk reads: eight words.
///
/// | word | bits | what |
/// |---|---|---|
/// | 0 | 31:0 | the block that follows when the conditional branch is not taken, or if there is no branch |
/// | 1 | 31:0 | the block that follows when the conditional branch is taken |
/// | 2 | 31:0 | with calls: the block at the return address of the last one |
/// | 2 | 15:0, 31:16 | if plain: the edge-map places of the blocks that follow, not taken and taken |
/// | 3 | 15:0 | the block's place in a map of edges |
/// | 3 | 18:16 | its end, a [`BlockEnd`] |
/// | 3 | 19 | it has calls |
/// | 3 | 20 | it has several calls |
/// | 3 | 21 | it ends without a branch, and the blocks that follow are known up to one with a branch |
/// | 3 | 31:24 | its [context](super::context) |
/// | 4 to 7 | 31:0 | the block after the next one: word 4, plus 2 if the first branch is taken, plus 1 if the second |
///
/// Words 4 to 7 are set only if this block is plain and its link is known: to the block, if the next one is plain too
/// and its link is known, or else to [`NO_PAIR`].
pub(super) type Words = [u32; BLOCK_WORDS];

/// The number of words of a node, and of a body.
pub(super) const BLOCK_WORDS: usize = 8;

/// Stands for the block after the next one if the next one is not plain. The numbers of blocks are below it, and with a
/// 32-bit `usize` the place after its words can still be computed.
pub(super) const NO_PAIR: u32 = u32::MAX - 15;

/// A block to read, in place: a copy would have to be written before it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'g>(pub(super) &'g Words);

/// A block to change.
#[derive(Debug)]
pub(super) struct NodeMut<'g>(pub(super) &'g mut Words);

/// The kinds of block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockEnd {
    /// None: the cache cannot walk this block.
    None = 0,
    /// A conditional branch.
    Cond = 1,
    /// A near return.
    Return = 2,
    /// A near indirect call.
    Call = 3,
    /// Another branch whose target the trace gives.
    Indirect = 4,
    /// No branch: the code continues in another section.
    Open = 5,
}

const END: u32 = 16;
const CALLS: u32 = 1 << 19;
const SEVERAL: u32 = 1 << 20;
const CLOSED: u32 = 1 << 21;

/// Returns the index of the word with the block after these two outcomes.
#[inline(always)]
pub(super) const fn pair_word(first: u8, second: u8) -> usize {
    4 + 2 * (first as usize & 1) + (second as usize & 1)
}

impl Node<'_> {
    /// No block.
    pub(super) const NONE: Self = Node(&[0; 8]);

    #[inline(always)]
    pub(super) const fn ends(self) -> u32 {
        self.0[3] >> END & 7
    }

    /// Returns true if the block ends with a conditional branch and has no calls.
    #[inline(always)]
    pub(super) const fn is_plain(self) -> bool {
        self.0[3] & (7 << END | CALLS) == (BlockEnd::Cond as u32) << END
    }

    /// Returns true if the block has calls; an indirect call at its end counts.
    #[inline(always)]
    pub(super) const fn has_calls(self) -> bool {
        self.0[3] & CALLS != 0
    }

    #[inline(always)]
    pub(super) const fn has_several_calls(self) -> bool {
        self.0[3] & SEVERAL != 0
    }

    #[inline(always)]
    pub(super) const fn is_closed(self) -> bool {
        self.0[3] & CLOSED != 0
    }

    #[inline(always)]
    pub(super) const fn edge(self) -> u16 {
        self.0[3] as u16
    }

    pub(super) const fn context(self) -> u8 {
        (self.0[3] >> 24) as u8
    }

    /// Returns the block that follows the conditional branch; 0 if unknown.
    #[inline(always)]
    pub(super) const fn next(self, taken: u8) -> u32 {
        self.0[taken as usize & 1]
    }

    /// Returns the block after the next one, if both are plain; 0 if unknown, [`NO_PAIR`] if the next one is not plain.
    #[inline(always)]
    pub(super) const fn pair(self, first: u8, second: u8) -> u32 {
        self.0[pair_word(first, second)]
    }

    /// Returns the next block's place in a map of edges, if the block after it is known by [`pair`](Self::pair).
    #[inline(always)]
    pub(super) const fn next_edge(self, taken: u8) -> u16 {
        (self.0[2] >> (16 * (taken as u32 & 1))) as u16
    }

    /// Returns the block that the last call returns to; 0 if unknown.
    #[inline(always)]
    pub(super) const fn site(self) -> u32 {
        self.0[2]
    }
}

impl NodeMut<'_> {
    /// Initialises a block that has no end yet.
    pub(super) const fn begin(&mut self, edge: u16, context: u8) {
        *self.0 = [0, 0, 0, edge as u32 | (context as u32) << 24, 0, 0, 0, 0];
    }

    pub(super) const fn end_with(&mut self, end: BlockEnd) {
        self.0[3] |= (end as u32) << END;
    }

    pub(super) const fn set_calls(&mut self, calls: u8) {
        self.0[3] |= match calls {
            0 => 0,
            1 => CALLS,
            _ => CALLS | SEVERAL,
        };
    }

    pub(super) const fn set_closed(&mut self) {
        self.0[3] |= CLOSED;
    }

    pub(super) const fn set_next(&mut self, taken: u8, next: u32) {
        self.0[taken as usize & 1] = next;
    }

    /// Sets the block after the next one, whose place in a map of edges is `next_edge`.
    pub(super) const fn set_pair(&mut self, first: u8, second: u8, after: u32, next_edge: u16) {
        self.0[pair_word(first, second)] = after;
        let at = 16 * (first as u32 & 1);
        self.0[2] = self.0[2] & !(0xffff << at) | (next_edge as u32) << at;
    }

    pub(super) const fn set_site(&mut self, site: u32) {
        self.0[2] = site;
    }
}

/// The rest of a block, which is read only for sinks that want it, and is one cache line of the processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    pub(super) ip: u64,
    pub(super) end_ip: u64,
    pub(super) insns: u32,
    pub(super) section: u32,
    /// Its first segment.
    pub(super) segment: u32,
    pub(super) segments: u8,
    /// The number of calls; as many return addresses follow the segments.
    pub(super) calls: u8,
    /// The length of the last instruction.
    pub(super) size: u8,
}

impl Body {
    #[inline(always)]
    pub(super) const fn words(self) -> Words {
        let Self { ip, end_ip, insns, section, segment, segments, calls, size } = self;
        let ([a, b], [c, d]) = (halves(ip), halves(end_ip));
        [a, b, c, d, insns, section, segment, u32::from_le_bytes([segments, calls, size, 0])]
    }

    #[inline(always)]
    pub(super) const fn of(&[a, b, c, d, insns, section, segment, counts]: &Words) -> Self {
        let [segments, calls, size, _] = counts.to_le_bytes();
        Self { ip: whole([a, b]), end_ip: whole([c, d]), insns, section, segment, segments, calls, size }
    }

    /// Returns the address after the last instruction.
    pub(super) const fn next(&self) -> u64 {
        self.end_ip.wrapping_add(self.size as u64)
    }

    /// Sets `block` to this one, which has the same mode and other context.
    #[inline(always)]
    pub(super) const fn show(&self, block: &mut Block) {
        (block.ip, block.end_ip) = (self.ip, self.end_ip);
        (block.insns, block.section) = (self.insns, self.section);
    }
}

/// Returns the low and the high half of an address.
#[inline(always)]
pub(super) const fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Returns the address of these halves.
#[inline(always)]
pub(super) const fn whole([low, high]: [u32; 2]) -> u64 {
    low as u64 | (high as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: [(u8, u8); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];

    #[test]
    fn each_part_of_a_node_is_apart_from_the_others() {
        let mut words = [u32::MAX; 8];
        let mut node = NodeMut(&mut words);
        node.begin(0xabcd, 0x7f);
        node.end_with(BlockEnd::Indirect);
        node.set_calls(2);
        node.set_closed();
        node.set_next(1, 0x1234_5678);
        node.set_next(0, 0x9abc_def0);
        for (first, second) in PAIRS {
            node.set_pair(first, second, (0x10 * first + second).into(), 0x1111 << first);
        }
        let node = Node(&words);
        assert_eq!((node.edge(), node.context()), (0xabcd, 0x7f));
        assert_eq!(node.ends(), BlockEnd::Indirect as u32);
        assert!(node.has_calls() && node.has_several_calls() && node.is_closed());
        assert_eq!((node.next(0), node.next(1)), (0x9abc_def0, 0x1234_5678));
        assert_eq!(PAIRS.map(|(first, second)| node.pair(first, second)), [0, 1, 0x10, 0x11]);
        assert_eq!([node.next_edge(0), node.next_edge(1)], [0x1111, 0x2222]);
        let before = words;
        NodeMut(&mut words).set_site(0x1357_9bdf);
        assert_eq!(Node(&words).site(), 0x1357_9bdf);
        // The word is shared with the edges: a plain block has no calls.
        words[2] = before[2];
        assert_eq!(words, before);
    }

    #[test]
    fn a_block_is_plain_with_a_conditional_branch_and_no_calls() {
        for end in [
            BlockEnd::None,
            BlockEnd::Cond,
            BlockEnd::Return,
            BlockEnd::Call,
            BlockEnd::Indirect,
            BlockEnd::Open,
        ] {
            for calls in 0..3 {
                let mut words = [0; 8];
                let mut node = NodeMut(&mut words);
                node.begin(0xffff, 0xff);
                node.end_with(end);
                node.set_calls(calls);
                assert_eq!(Node(&words).is_plain(), end == BlockEnd::Cond && calls == 0, "{end:?} {calls}");
            }
        }
    }

    #[test]
    fn a_body_keeps_all_its_parts_in_words() {
        let body = Body {
            ip: 0xffff_8000_8765_4321,
            end_ip: 0xffff_8000_1234_5678,
            insns: 0x0102_0304,
            section: u32::MAX,
            segment: 0x0506_0708,
            segments: 9,
            calls: 10,
            size: 15,
        };
        let Body { ip, end_ip, insns, section, segment, segments, calls, size } = Body::of(&body.words());
        assert_eq!((ip, end_ip, insns, section), (body.ip, body.end_ip, body.insns, body.section));
        assert_eq!((segment, segments, calls, size), (body.segment, 9, 10, 15));
    }
}
