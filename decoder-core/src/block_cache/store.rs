//! The blocks in the caller's memory, and their lookup by address.

use super::{
    ExecutionSink,
    context::{CodeContext, CodeContexts},
    node::{BLOCK_WORDS, BlockEnd, Body, NO_PAIR, Node, NodeMut, Words, halves, pair_word, whole},
    rows::Rows,
    sequences::{SEQUENCE_WORDS_PER_BLOCK, Sequences},
    sink::takes_numbers,
};
use crate::image::Image;

/// The 32-bit words of memory for a block, with its share of the index, two segments, and its share of the sequences.
pub const WORDS_PER_BLOCK: usize = REST_OF_BLOCK + 2 + SEQUENCE_WORDS_PER_BLOCK;

/// Words per block, without the index and the sequences.
const REST_OF_BLOCK: usize = 26;

/// The number of blocks for each cached target.
const TARGETS_FOR: usize = 64;

/// The factor for hashes of addresses.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Straight code: its address and the lengths of its instructions; or a return address. The low half of each comes
/// first.
pub(super) type Segment = [u32; SEGMENT_WORDS];

const SEGMENT_WORDS: usize = 4;
const TARGET_WORDS: usize = 4;

/// A cache of decoded blocks: each block knows the blocks that follow it.
///
/// The cache is separate from the trace and the image, in memory of the caller, and outlives both: decode several
/// traces with the same block cache, and code that was decoded once is not decoded again. It describes one image at a
/// time; for another image it forgets all blocks. If bytes of the image change in place, call [`forget`](Self::forget).
///
/// When the memory is full, the cache forgets all blocks. A block takes about [`WORDS_PER_BLOCK`] words.
///
/// ```
/// use pugmark_decoder_core::block_cache::{BlockCache, WORDS_PER_BLOCK};
///
/// let mut memory = [0; 1024 * WORDS_PER_BLOCK];
/// let cache = BlockCache::new(&mut memory);
/// assert_eq!(cache.statistics().room, 1024);
/// ```
#[derive(Debug)]
pub struct BlockCache<'m> {
    /// The blocks' nodes. A block's number is the index of its words here, and of its body in `bodies`: so the
    /// processor reads a node as soon as it has read the number.
    pub(super) nodes: &'m mut [u32],
    pub(super) bodies: &'m mut [u32],
    pub(super) segments: Rows<'m, SEGMENT_WORDS>,
    /// Blocks by the hashes of their addresses; 0 is free.
    index: &'m mut [u32],
    shift: u32,
    /// The cached blocks at targets of indirect branches, by the hashes of their addresses: the low and the high half
    /// of the address, the block, and the context. A place without a block is free.
    targets: Rows<'m, TARGET_WORDS>,
    target_shift: u32,
    pub(super) sequences: Sequences<'m>,
    /// The number of the next block; block 0 stands for none.
    pub(super) used: usize,
    pub(super) used_segments: usize,
    pub(super) contexts: CodeContexts,
    /// The context of the walk.
    pub(super) context: u8,
    /// The image that the blocks belong to.
    image: u64,
    /// The number of times that the blocks were forgotten.
    pub(super) generation: u64,
    pub(super) statistics: Statistics,
}

/// The contents of a block cache and its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The number of blocks that it holds.
    pub blocks: usize,
    /// The number of blocks that it has room for.
    pub room: usize,
    /// The number of times that it forgot all blocks because its memory was full.
    pub flushes: u64,
    /// The number of blocks decoded.
    pub built: u64,
    /// The number of times that a known part of the trace was only counted; see [`ExecutionSink::COUNTS`].
    pub repeated: u64,
}

/// A place in the index.
pub(super) struct IndexSlot(usize);

impl<'m> BlockCache<'m> {
    /// Creates a block cache without blocks in all of `memory`.
    #[must_use]
    pub fn new(memory: &'m mut [u32]) -> Self {
        // Two to four places in the index for each block, because the number of places is a power of two.
        let fits = memory.len() / WORDS_PER_BLOCK;
        let indexed = if fits < 2 { 0 } else { 2 * fits.next_power_of_two() };
        let (index, memory) = memory.split_at_mut(indexed.min(memory.len()));
        let targets = if fits < TARGETS_FOR { 0 } else { (fits / TARGETS_FOR).next_power_of_two().max(2) };
        let (targets, memory) = memory.split_at_mut(TARGET_WORDS * targets);
        let targets = Rows::new(targets);
        let (sequences, memory) = Sequences::new(memory, fits);
        // The numbers of blocks are below NO_PAIR. Half of the index is free.
        let room =
            (memory.len() / REST_OF_BLOCK).min(index.len() / 2 + 1).min(NO_PAIR as usize / BLOCK_WORDS);
        let (nodes, memory) = memory.split_at_mut(BLOCK_WORDS * room);
        let (bodies, segments) = memory.split_at_mut(BLOCK_WORDS * room);
        let mut cache = Self {
            nodes,
            bodies,
            segments: Rows::new(segments),
            shift: 64 - index.len().checked_ilog2().unwrap_or(1),
            index,
            target_shift: 64 - targets.len().checked_ilog2().unwrap_or(1),
            targets,
            sequences,
            used: BLOCK_WORDS,
            used_segments: 0,
            contexts: CodeContexts::NONE,
            context: 0,
            image: 0,
            generation: 0,
            statistics: Statistics { room: room.saturating_sub(1), ..Statistics::default() },
        };
        cache.forget();
        cache
    }

    /// Forgets all blocks. Call it when code changed in place.
    pub fn forget(&mut self) {
        self.clear();
        self.contexts.clear();
        self.context = 0;
    }

    fn clear(&mut self) {
        self.generation += 1;
        self.index.fill(0);
        self.targets.clear();
        self.sequences.clear();
        (self.used, self.used_segments) = (BLOCK_WORDS, 0);
        // Block 0 stands for none, and leads nowhere.
        for words in [&mut *self.nodes, &mut *self.bodies] {
            words.iter_mut().take(BLOCK_WORDS).for_each(|word| *word = 0);
        }
    }

    /// Returns the contents of the cache and its counters.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let (blocks, repeated) = (self.used / BLOCK_WORDS - 1, self.sequences.repeated());
        Statistics { blocks, repeated, ..self.statistics }
    }

    /// Switches to the code of `image`, which `key` identifies.
    pub(super) fn enter_image(&mut self, image: Image<'_>, key: u64) {
        if self.image != key {
            self.forget();
            self.image = key;
            self.contexts.sees(image);
        }
    }

    /// Switches to a context. If that needs room, passes the counts on to `sink` first.
    pub(super) fn enter(&mut self, context: CodeContext, sink: &mut impl ExecutionSink) {
        self.context = self.contexts.number_of(context).unwrap_or_else(|| {
            self.flush(sink);
            self.contexts.clear();
            self.contexts.number_of(context).unwrap_or(0)
        });
    }

    /// Forgets all blocks to make room. Passes the counts on to `sink` first.
    #[cold]
    pub(super) fn flush<S: ExecutionSink>(&mut self, sink: &mut S) {
        self.sequences.tell(|edge, times| sink.edges(edge, times));
        self.clear();
        self.statistics.flushes += 1;
        if takes_numbers::<S>() {
            sink.numbered(self.generation);
        }
    }

    /// Returns the block at `ip` in the current context, or the place in the index for it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn find(&self, ip: u64) -> Result<u32, IndexSlot> {
        let mask = self.index.len().wrapping_sub(1);
        let hash = (ip ^ u64::from(self.context) << 56).wrapping_mul(GOLDEN_RATIO);
        let mut slot = (hash >> self.shift) as usize & mask;
        loop {
            let node = self.index.get(slot).copied().unwrap_or(0);
            if node == 0 {
                return Err(IndexSlot(slot));
            }
            if self.view().ip(node) == ip && self.view().node(node).context() == self.context {
                return Ok(node);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Returns the block at an indirect branch's target in the current context; 0 if none can be walked.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn find_target(&mut self, ip: u64) -> u32 {
        let slot = (ip.wrapping_mul(GOLDEN_RATIO) >> self.target_shift) as usize;
        let place = self.targets.get(slot).copied().unwrap_or_default();
        let [low, high, block, context] = place;
        if whole([low, high]) == ip && context == u32::from(self.context) && block != 0 {
            return block;
        }
        self.look_up_target(slot, ip)
    }

    #[inline(never)]
    fn look_up_target(&mut self, slot: usize, ip: u64) -> u32 {
        let Ok(block) = self.find(ip) else { return 0 };
        if self.view().node(block).ends() == BlockEnd::None as u32 {
            return 0;
        }
        if let Some(place) = self.targets.get_mut(slot) {
            let [low, high] = halves(ip);
            *place = [low, high, block, self.context.into()];
        }
        block
    }

    /// Adds a block at `ip` that has no end yet; `None` without room.
    pub(super) fn add(&mut self, place: IndexSlot, ip: u64) -> Option<u32> {
        let at = self.used;
        let number = u32::try_from(at).ok()?;
        *self.bodies.get_mut(at..)?.first_chunk_mut()? = halves(ip);
        NodeMut(self.nodes.get_mut(at..)?.first_chunk_mut()?).begin(super::edges::place(ip), self.context);
        let IndexSlot(slot) = place;
        *self.index.get_mut(slot)? = number;
        self.used += BLOCK_WORDS;
        self.statistics.built += 1;
        Some(number)
    }

    pub(super) fn change(&mut self, number: u32, change: impl FnOnce(&mut NodeMut<'_>)) {
        if let Some(words) = words_of_mut(self.nodes, number) {
            change(&mut NodeMut(words));
        }
    }

    pub(super) fn set_body(&mut self, number: u32, body: &Body) {
        if let Some(words) = words_of_mut(self.bodies, number) {
            *words = body.words();
        }
    }

    /// Returns the part that a walk reads.
    #[inline(always)]
    pub(super) const fn view(&self) -> View<'_> {
        let Self { nodes, bodies, segments, .. } = self;
        View { nodes, bodies, segments: segments.words() }
    }
}

/// Returns the words of the block with that number.
#[inline(always)]
fn words_of(all: &[u32], number: u32) -> Option<&Words> {
    let at = number as usize;
    all.get(at..at + BLOCK_WORDS)?.first_chunk()
}

fn words_of_mut(all: &mut [u32], number: u32) -> Option<&mut Words> {
    let at = number as usize;
    all.get_mut(at..at + BLOCK_WORDS)?.first_chunk_mut()
}

/// Returns words in place of those of a missing block, which never happens. As a call it costs the others one branch
/// that is predicted; as a value it would cost each of them the choice between two addresses.
#[cold]
#[inline(never)]
fn no_words() -> &'static Words {
    &[0; BLOCK_WORDS]
}

/// The blocks of a cache, to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'g> {
    nodes: &'g [u32],
    bodies: &'g [u32],
    segments: &'g [u32],
}

impl<'g> View<'g> {
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Option<Node<'g>> {
        words_of(self.nodes, number).map(Node)
    }

    /// Returns the block after the next one, as [`Node::pair`] does.
    #[inline(always)]
    pub(super) fn pair(&self, number: u32, first: u8, second: u8) -> u32 {
        let from = pair_word(first, second);
        self.nodes.get(from..).and_then(|words| words.get(number as usize)).copied().unwrap_or(0)
    }

    pub(super) fn node(&self, number: u32) -> Node<'g> {
        self.get(number).unwrap_or(Node::NONE)
    }

    #[inline(always)]
    pub(super) fn body(&self, number: u32) -> Body {
        Body::of(words_of(self.bodies, number).unwrap_or_else(|| no_words()))
    }

    #[inline(always)]
    pub(super) fn ip(&self, number: u32) -> u64 {
        self.body(number).ip
    }

    /// Returns the straight code of a block.
    #[inline(always)]
    pub(super) fn straights(&self, body: &Body) -> impl Iterator<Item = Segment> + use<'g> {
        self.some_segments(body.segment as usize, body.segments)
    }

    /// Returns the addresses that the calls of a block return to, in order.
    pub(super) fn returns(&self, body: &Body) -> impl ExactSizeIterator<Item = u64> + use<'g> {
        let first = body.segment as usize + usize::from(body.segments);
        self.some_segments(first, body.calls).map(|[low, high, ..]| whole([low, high]))
    }

    #[inline(always)]
    fn some_segments(&self, first: usize, count: u8) -> impl ExactSizeIterator<Item = Segment> + use<'g> {
        let words = SEGMENT_WORDS * first..SEGMENT_WORDS * (first + usize::from(count));
        let rows = self.segments.get(words).unwrap_or_default().chunks_exact(SEGMENT_WORDS);
        rows.map(|row| row.first_chunk().copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::{block_cache::sink::NoSink, image::Asid, mode::ExecMode};

    extern crate std;
    use std::vec;

    #[test]
    fn all_memory_is_shared_out_among_the_parts() {
        for words in (0..5_000).step_by(5_000 / crate::rounds(5_000) as usize) {
            let mut memory = vec![u32::MAX; words];
            let cache = BlockCache::new(&mut memory);
            let BlockCache { nodes, bodies, segments, index, targets, sequences, .. } = &cache;
            let room = nodes.len() / BLOCK_WORDS;
            let what = std::format!("{words} words, {room} blocks");
            assert_eq!((nodes.len(), bodies.len()), (BLOCK_WORDS * room, BLOCK_WORDS * room), "{what}");
            assert_eq!(cache.statistics(), Statistics { room: room.saturating_sub(1), ..Default::default() });
            // At most a segment's words are left over, and those before the first cache line.
            let rest = 4 * (segments.len() + targets.len()) + sequences.words();
            let before = if sequences.words() > 0 { 15 } else { 0 };
            let taken = index.len() + nodes.len() + bodies.len() + rest;
            assert!(taken <= words && words - taken < 4 + before, "{what}: {taken}");
            if index.is_empty() {
                assert!(words < 2 * WORDS_PER_BLOCK, "{what}");
                continue;
            }
            // Block 0 is not in the index. A search begins at the hash's highest bits and ends at a free place.
            assert!(
                index.len().is_power_of_two() && index.len() >= 2 * (room - 1),
                "{what}: {}",
                index.len()
            );
            assert_eq!(1 << (64 - cache.shift), index.len(), "{what}");
            assert!(segments.len() >= 2 * room, "{what}: {}", segments.len());
            // One more block with its two segments would not fit.
            let one_more =
                index.len() + 4 * targets.len() + sequences.words() + before + (room + 1) * REST_OF_BLOCK;
            assert!(one_more > words || room == index.len() / 2 + 1, "{what}");
            assert!(2 * room >= words / WORDS_PER_BLOCK, "{what}");
            assert!(index.iter().all(|place| *place == 0), "{what}");
            assert_eq!((words_of(nodes, 0), words_of(bodies, 0)), (Some(&[0; 8]), Some(&[0; 8])), "{what}");
        }
    }

    #[test]
    fn blocks_of_full_memory_are_found_and_forgotten_together() {
        let mut memory = vec![u32::MAX; 50 * WORDS_PER_BLOCK];
        let mut cache = BlockCache::new(&mut memory);
        let room = cache.statistics().room;
        for round in 0..3 {
            for block in 0..room as u64 {
                let ip = 0xffff_8000_0000_0000 + 16 * block;
                let place = cache.find(ip).expect_err("it was not added");
                // A block's number is the index of its words.
                let number = 8 * (block as u32 + 1);
                assert_eq!(cache.add(place, ip), Some(number));
                assert_eq!(cache.find(ip).ok(), Some(number));
            }
            let place = cache.find(1).expect_err("it was not added");
            assert_eq!(cache.add(place, 1), None);
            let built = (round + 1) * room as u64;
            assert_eq!(
                cache.statistics(),
                Statistics { blocks: room, room, flushes: round, built, repeated: 0 }
            );
            cache.flush(&mut NoSink);
            assert_eq!(
                cache.statistics(),
                Statistics { blocks: 0, room, flushes: round + 1, built, repeated: 0 }
            );
        }
    }

    #[test]
    fn a_target_is_found_by_its_whole_address_in_its_context_until_all_is_forgotten() {
        let context = |cr3| CodeContext {
            mode: ExecMode::Bits64,
            speculative: false,
            space: Asid { cr3: Some(cr3), vmcs: None },
        };
        let mut memory = vec![0; 128 * WORDS_PER_BLOCK];
        let mut cache = BlockCache::new(&mut memory);
        cache.enter(context(0x1000), &mut NoSink);
        // There are two places for cached targets, so two of these share one.
        let ips: [u64; 3] = [0x1000, 0x1000 | 1 << 32, 0x1000 | 1 << 48];
        assert_eq!(cache.targets.len(), 2);
        for round in 0..2 {
            for ip in ips {
                assert_eq!(cache.find_target(ip), 0, "{ip:x} in round {round}");
                let place = cache.find(ip).expect_err("it was not added");
                let number = cache.add(place, ip).expect("there is room");
                assert_eq!(cache.find_target(ip), 0, "it ends with nothing yet");
                cache.change(number, |node| node.end_with(BlockEnd::Cond));
            }
            for _ in 0..2 {
                assert_eq!(ips.map(|ip| cache.find_target(ip)), [8, 16, 24], "round {round}");
            }
            cache.enter(context(0x2000), &mut NoSink);
            assert_eq!(cache.find_target(ips[2]), 0, "another address space");
            cache.enter(context(0x1000), &mut NoSink);
            cache.flush(&mut NoSink);
        }
    }
}
