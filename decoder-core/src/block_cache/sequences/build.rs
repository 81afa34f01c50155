//! Builds a sequence by following its branches through the cache.

use super::{
    super::{
        calls::{CachedCalls, Top},
        edges,
        node::{BlockEnd, Node, halves},
        store::BlockCache,
    },
    At, CALLS, EDGES, KeptIp, Key, NEVER, REST_WORDS, Rest, Sequences, Sizes, WAYS, is_canonical, middle,
    packets::{Branches, Bytes, SequenceEnd},
    tell,
};

const COND: u32 = BlockEnd::Cond as u32;
const RETURN: u32 = BlockEnd::Return as u32;
const CALL: u32 = BlockEnd::Call as u32;
const INDIRECT: u32 = BlockEnd::Indirect as u32;
const OPEN: u32 = BlockEnd::Open as u32;

/// Maximum number of calls that have not returned along the sequence.
const DEPTH: usize = 16;

/// A sequence, as far as it was followed.
#[derive(Clone, Copy)]
struct Follow {
    block: u32,
    /// Half the edge-map place of the last block, for the next edge.
    before: u16,
    edges: [u16; EDGES],
    edges_len: usize,
    /// The blocks at the return addresses of calls that have not returned.
    calls: [u32; DEPTH],
    depth: usize,
    /// The blocks that returns from calls before the sequence must lead to, the first one first; 0 is any block.
    popped: [u32; CALLS],
    popped_len: usize,
    /// The maximum growth of the stack, in calls.
    rise: usize,
    /// The stack of the calls before the sequence.
    below: Top,
}

impl Sequences<'_> {
    /// Returns the place for a new sequence: its own, if known but not countable; or a free one; or each in turn.
    fn way_for(&mut self, new: &Key, rest: &Rest, first: u64) -> usize {
        let is_new = |slot: &usize| {
            let known = self.keys.get(*slot).map(|key| [&key[..8], &key[9..]]);
            known == Some([&new[..8], &new[9..]]) && self.rests.get(*slot) == Some(rest)
        };
        let is_free = |slot: &usize| self.keys.get(*slot).is_some_and(|key| key[0] == 0);
        let mut ways = self.ways(new[0], first);
        if let Some(slot) = ways.clone().find(is_new).or_else(|| ways.find(is_free)) {
            return slot;
        }
        self.next_way = (self.next_way + 1) % WAYS.min(self.keys.len());
        self.place(new[0], first) ^ self.next_way
    }
}

impl BlockCache<'_> {
    /// Remembers the sequence that begins with `bytes` where the walk is at `at`, with `last_ip` before it. Passes on
    /// the counts of a sequence that is forgotten for it. Returns `false` if there is no sequence.
    #[cold]
    #[inline(never)]
    pub(super) fn build_sequence(
        &mut self,
        at: &At,
        calls: &CachedCalls,
        bytes: &Bytes,
        last_ip: u64,
        mut each: impl FnMut(u16, u32),
    ) -> bool {
        let found = self.repeat(at, calls, bytes, last_ip);
        let sequences = &mut self.sequences;
        let Some(candidate) = sequences.candidates.get_mut(sequences.place(at.block, bytes.first())) else {
            return false;
        };
        let Some((new_key, new_rest)) = &found else {
            *candidate |= NEVER;
            return false;
        };
        *candidate = 0;
        let slot = sequences.way_for(new_key, new_rest, bytes.first());
        let (Some(key), Some(rest)) = (sequences.keys.get_mut(slot), sequences.rests.get_mut(slot)) else {
            return false;
        };
        if key[8] > 0 {
            tell(key, rest, &mut each);
            let counted = sequences.counted.get_mut(..sequences.counted_len).unwrap_or_default();
            if let Some(gone) = counted.iter().rposition(|place| *place as usize == slot) {
                counted.swap(gone, counted.len() - 1);
                sequences.counted_len -= 1;
            }
        }
        *key = *new_key;
        *rest = *new_rest;
        true
    }

    /// Builds the sequence by following the branches up to the last place at which it can end.
    fn repeat(&self, at: &At, calls: &CachedCalls, bytes: &Bytes, last_ip: u64) -> Option<(Key, Rest)> {
        let first = self.view().get(at.block)?.edge();
        let mut best = None;
        let kept = self.follow(calls, bytes, last_ip, Follow::begin(at, first), &mut best);
        let Best { follow, next, end } = best.as_ref()?;
        Some(follow.words(at.block, *next, end, kept, bytes, [u64::from(first), last_ip]))
    }

    /// Follows the branches as far as the cache knows the blocks, and notes the last place at which a sequence can end.
    #[inline(never)]
    fn follow(
        &self,
        calls: &CachedCalls,
        bytes: &Bytes,
        last_ip: u64,
        mut follow: Follow,
        best: &mut Option<Best>,
    ) -> KeptIp {
        let mut branches = Branches::NONE;
        branches.read(bytes, last_ip);
        let mut outcome = 0;
        for end in branches.ends() {
            let Some(next) = follow.up_to(self, calls, branches.outcomes(outcome, end), end) else { break };
            if follow.depth <= CALLS && is_canonical(end.ip) {
                *best = Some(Best { follow, next, end: *end });
            }
            if follow.go(self, next).is_none() {
                break;
            }
            outcome = end.outcomes;
        }
        branches.kept
    }
}

/// A place at which a sequence can end.
struct Best {
    follow: Follow,
    /// The block there.
    next: u32,
    end: SequenceEnd,
}

impl Follow {
    /// Creates a sequence at the walk's place; `first` is the place of that block in a map of edges.
    const fn begin(at: &At, first: u16) -> Self {
        Self {
            block: at.block,
            before: edges::edge(0, first).1,
            edges: [0; EDGES],
            edges_len: 0,
            calls: [0; DEPTH],
            depth: 0,
            popped: [0; CALLS],
            popped_len: 0,
            rise: 0,
            below: at.top,
        }
    }

    /// Returns the words of the sequence from `block` to `next`. `[first, last_ip]` are the place of its first block in
    /// a map of edges and the last IP before it.
    #[inline(never)]
    fn words(
        &self,
        block: u32,
        next: u32,
        end: &SequenceEnd,
        kept: KeptIp,
        bytes: &Bytes,
        [first, last_ip]: [u64; 2],
    ) -> (Key, Rest) {
        let sizes = Sizes {
            len: end.len,
            popped: self.popped_len,
            pushed: self.depth,
            // All four places of calls are written, even if there are fewer calls.
            rise: self.rise.max(CALLS),
            kept,
            packets: end.packets,
            tnt_at: end.tnt_at,
            tip_at: end.tip_at,
        };
        let ([a, b], [c, d], [low, high]) =
            (halves(bytes.halves()[0]), halves(bytes.halves()[1]), halves(end.ip));
        let places = first as u32 | u32::from(self.before) << 16;
        let mut pushed = [0; CALLS];
        pushed.iter_mut().zip(&self.calls[..self.depth]).for_each(|(to, from)| *to = *from);
        let ([p, q, popped @ ..], [r, s, pushed @ ..]) = (self.popped, pushed);
        let key = [block, next, a, b, c, d, low, high, 0, places, sizes.word(), middle(last_ip), p, q, r, s];
        let mut rest = [0; REST_WORDS];
        let edges = self.edges.chunks_exact(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16);
        let words = popped.into_iter().chain(pushed).chain([self.edges_len as u32]).chain(edges);
        rest.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        (key, rest)
    }

    /// Follows the outcomes up to an end. Returns the block there.
    fn up_to(
        &mut self,
        cache: &BlockCache<'_>,
        calls: &CachedCalls,
        mut outcomes: &[u8],
        end: &SequenceEnd,
    ) -> Option<u32> {
        loop {
            let node = cache.view().get(self.block)?;
            self.push(cache, node)?;
            let next = match (node.ends(), outcomes) {
                (OPEN, _) if node.is_closed() => node.next(0),
                (COND, &[taken, ref rest @ ..]) => {
                    outcomes = rest;
                    node.next(taken)
                }
                (RETURN, &[1, ref rest @ ..]) => {
                    outcomes = rest;
                    self.pop(calls, true)?
                }
                (RETURN | CALL | INDIRECT, []) if end.named => {
                    if node.ends() == RETURN {
                        self.pop(calls, false)?;
                    }
                    return cache.find(end.ip).ok().filter(|block| is_walkable(cache, *block));
                }
                _ => return None,
            };
            if outcomes.is_empty() && !end.named {
                return Some(next).filter(|block| is_walkable(cache, *block));
            }
            self.go(cache, next)?;
        }
    }

    /// Continues with another block.
    fn go(&mut self, cache: &BlockCache<'_>, next: u32) -> Option<()> {
        let node = cache.view().get(next).filter(|_| next != 0)?;
        let place = self.edges.get_mut(self.edges_len)?;
        (*place, self.before) = edges::edge(self.before, node.edge());
        self.edges_len += 1;
        self.block = next;
        Some(())
    }

    /// Adds the calls of the block.
    fn push(&mut self, cache: &BlockCache<'_>, node: Node<'_>) -> Option<()> {
        if !node.has_calls() {
            return Some(());
        }
        let view = cache.view();
        for address in view.returns(&view.body(self.block)) {
            let site = cache.find(address).ok().filter(|block| is_walkable(cache, *block));
            *self.calls.get_mut(self.depth)? = site?;
            self.depth += 1;
            self.rise = self.rise.max(self.depth.saturating_sub(self.popped_len));
        }
        Some(())
    }

    /// Removes the last call. Returns the block that it returns to; 0 if it is not known or does not matter.
    fn pop(&mut self, calls: &CachedCalls, matters: bool) -> Option<u32> {
        if let Some(depth) = self.depth.checked_sub(1) {
            self.depth = depth;
            return self.calls.get(depth).copied();
        }
        let (site, _) = calls.pop(&mut self.below)?;
        let wanted = if matters { site } else { 0 };
        *self.popped.get_mut(self.popped_len)? = wanted;
        self.popped_len += 1;
        Some(wanted)
    }
}

fn is_walkable(cache: &BlockCache<'_>, block: u32) -> bool {
    block != 0 && cache.view().node(block).ends() != BlockEnd::None as u32
}
