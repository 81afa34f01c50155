//! Memoised sequences: packets that recur, with their effect. A loop in a program makes its trace repeat itself.
//!
//! A sequence is a few whole packets: TNT and TIP packets in at most 16 bytes, up to a TIP, or eight bytes without a
//! TIP. The cache remembers it with the block before it, the block that it leads to, the calls that it takes from the
//! stack and leaves there, and its edges. If the same bytes recur at the same block, no packet is read and no block is
//! walked over: the sequence is counted, and its edges are passed on at the end of the visit with that count. So only
//! sinks that take edges in any order benefit, see [`ExecutionSink::COUNTS`](super::ExecutionSink::COUNTS).
//!
//! ```text
//! trace     TNT TNT TIP TNT TIP | TNT TNT TIP TNT TIP | TNT TIP ...
//!           \--- sequence ---/   \- the same again -/
//! walk      block A ------------> A ------------------> A
//! ```
//!
//! All inputs of a sequence are compared: the block, the bytes, the bits of the last IP that its first TIP keeps, and
//! the calls that its compressed returns take from the stack. The block and the next eight bytes find a sequence
//! without reading packets.
//!
//! If few sequences are known, the attempts cost more than they save, so they become rare: [`Worth`].

mod build;
mod packets;
mod visit;

pub(super) use self::visit::{CountedSequences, wanted};

use self::packets::Bytes;
use super::{
    calls::{CachedCalls, Top},
    edges,
    node::whole,
    rows::Rows,
};
use crate::event::PacketPlace;

/// The number of blocks for which there is room for one sequence.
const BLOCKS_PER_SEQUENCE: usize = 16;

/// The 32-bit words per block for the sequences.
pub(super) const SEQUENCE_WORDS_PER_BLOCK: usize = (KEY_WORDS + REST_WORDS + 2).div_ceil(BLOCKS_PER_SEQUENCE);

/// Maximum number of edges of a sequence, without the one to its first block.
const EDGES: usize = 56;

/// Maximum number of calls that a sequence takes from the stack, and that it leaves there.
const CALLS: usize = 4;

/// The number of these calls in a [`Key`]. Most sequences have no more.
const FIRST_CALLS: usize = 2;

/// The number of places for sequences with the same block and the same first bytes: a function with several callers
/// returns to several places.
const WAYS: usize = 4;

/// Maximum number of consecutive sequences before the walk notes its place.
const TURN: usize = 64;

const KEY_WORDS: usize = 16;
const REST_WORDS: usize = 2 * (CALLS - FIRST_CALLS) + 1 + EDGES / 2;

/// The part of a sequence that is read each time: one cache line of the processor.
///
/// | word | what |
/// |---|---|
/// | 0, 1 | the block before it; 0 if there is no sequence; and the block after it |
/// | 2 to 5 | its bytes |
/// | 6, 7 | the last IP after it |
/// | 8 | the number of times it came since its edges were passed on |
/// | 9 | the edge-map place of its first block, and in the high half that of its last block, halved for the next edge |
/// | 10 | [`Sizes`] |
/// | 11 | bits 47:16 of the last IP before it |
/// | 12, 13 | the blocks that the first returns must lead to; 0 for any |
/// | 14, 15 | the blocks that the calls it leaves in the stack return to |
type Key = [u32; KEY_WORDS];

/// The rest of a sequence: the further calls as in words 12 to 15, the number of edges, and two edges a word.
type Rest = [u32; REST_WORDS];

/// The known sequences, each in one of [`WAYS`] places that its block and its first bytes give.
#[derive(Debug)]
pub(super) struct Sequences<'m> {
    keys: Rows<'m, KEY_WORDS>,
    rests: Rows<'m, REST_WORDS>,
    /// Sequences that are not known but may become so, by the first of these places.
    candidates: &'m mut [Candidate],
    /// The places of sequences that came and whose edges have not been passed on.
    counted: &'m mut [u32],
    counted_len: usize,
    shift: u32,
    /// The place to replace next, if none is free.
    next_way: usize,
    worth: Worth,
    /// The number of sequences taken.
    repeated: u64,
}

/// The place of the walk.
pub(super) struct At {
    pub(super) block: u32,
    /// Half the edge-map place of the previous block, for the next edge.
    pub(super) before: u16,
    pub(super) top: Top,
}

/// The properties of a sequence, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    /// Its length in bytes.
    len: usize,
    /// The number of calls popped and pushed, and the maximum growth of the stack within the sequence.
    popped: usize,
    pushed: usize,
    rise: usize,
    kept: KeptIp,
    packets: u64,
    /// The places of its last TNT packet and of its last TIP packet.
    tnt_at: Option<usize>,
    tip_at: Option<usize>,
}

/// The bits of the last IP that the first TIP of a sequence keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum KeptIp {
    /// All bits above bit 15.
    Above16 = 0,
    /// All bits above bit 31.
    Above32 = 1,
    #[default]
    Nothing = 2,
}

/// A sequence that is not known: its number of occurrences is in the three lowest bits, the rest is a hash.
type Candidate = u32;
const TIMES: u32 = 7;
/// The number of occurrences that marks a candidate that cannot be a sequence.
const NEVER: u32 = 7;
/// A candidate becomes a sequence at its third occurrence, if no other one came in between.
const OFTEN: u32 = 3;

/// The expected gain of an attempt to find a sequence: a miss costs about as much as 24 packets save.
#[derive(Clone, Copy, Debug)]
struct Worth {
    /// The credit, in packets.
    credit: usize,
    /// The number of attempts skipped.
    passed: u8,
}

impl Worth {
    /// The initial credit, higher than any later one: at first no sequence is known.
    const FIRST: Self = Self { credit: 512, passed: 0 };
    const MOST: usize = 256;
    const COST: usize = 24;
    /// Without credit, one attempt is made, and the next seven are not.
    const RARE: u8 = 8;
    /// Below this credit the walk ignores sequences up to the next attempt.
    const LOW: usize = 20;

    /// Returns true if a sequence is to be looked for now.
    fn allows_attempt(&mut self) -> bool {
        self.passed = if self.credit == 0 { (self.passed + 1) % Self::RARE } else { 0 };
        self.passed == 0
    }

    fn hits(&mut self, packets: usize) {
        self.credit = (self.credit + packets).min(Self::MOST.max(self.credit));
    }

    fn misses(&mut self) {
        self.credit = self.credit.saturating_sub(Self::COST);
    }
}

impl Sizes {
    /// Stands for no packet of the kind.
    const NOWHERE: u32 = 31;

    #[inline(always)]
    fn of(word: u32) -> Self {
        let place = |at| (at != Self::NOWHERE).then_some(at as usize);
        Self {
            len: (word & 31) as usize,
            popped: (word >> 5 & 7) as usize,
            pushed: (word >> 8 & 7) as usize,
            rise: (word >> 11 & 31) as usize,
            kept: match word >> 16 & 3 {
                0 => KeptIp::Above16,
                1 => KeptIp::Above32,
                _ => KeptIp::Nothing,
            },
            packets: (word >> 18 & 15).into(),
            tnt_at: place(word >> 22 & 31),
            tip_at: place(word >> 27),
        }
    }

    fn word(self) -> u32 {
        let Self { len, popped, pushed, rise, kept, packets, tnt_at, tip_at } = self;
        let place = |at: Option<usize>| at.map_or(Self::NOWHERE, |at| at as u32);
        len as u32
            | (popped as u32) << 5
            | (pushed as u32) << 8
            | (rise as u32) << 11
            | (kept as u32) << 16
            | (packets as u32) << 18
            | place(tnt_at) << 22
            | place(tip_at) << 27
    }
}

impl KeptIp {
    /// Returns the mask of these bits within bits 47:16 of the last IP.
    #[inline(always)]
    const fn mask(self) -> u32 {
        match self {
            Self::Above16 => !0,
            Self::Above32 => 0xffff_0000,
            Self::Nothing => 0,
        }
    }
}

/// Returns bits 47:16 of an address.
#[inline(always)]
const fn middle(ip: u64) -> u32 {
    (ip >> 16) as u32
}

/// Returns true if bits 63:48 repeat bit 47, so that [`middle`] determines all bits above bit 15. No sequence begins or
/// ends with another last IP.
const fn is_canonical(ip: u64) -> bool {
    (ip << 16) as i64 >> 16 == ip as i64
}

impl<'m> Sequences<'m> {
    /// Takes its part of `memory` for a block cache of that many blocks, and returns the rest.
    pub(super) fn new(memory: &'m mut [u32], blocks: usize) -> (Self, &'m mut [u32]) {
        // A power of two, because the highest bits of a hash are the place.
        let room = (blocks / BLOCKS_PER_SEQUENCE)
            .checked_ilog2()
            .filter(|bits| *bits > 0)
            .map_or(0, |bits| 1 << bits);
        // Each key is one cache line of the processor.
        let before =
            if room == 0 { 0 } else { memory.as_ptr().align_offset(4 * KEY_WORDS).min(memory.len()) };
        let (_, memory) = memory.split_at_mut(before);
        let (keys, memory) = memory.split_at_mut(KEY_WORDS * room);
        let (rests, memory) = memory.split_at_mut(REST_WORDS * room);
        let (candidates, memory) = memory.split_at_mut(room);
        let (counted, memory) = memory.split_at_mut(room);
        let sequences = Self {
            keys: Rows::new(keys),
            rests: Rows::new(rests),
            candidates,
            counted,
            counted_len: 0,
            shift: 64 - usize::checked_ilog2(room).unwrap_or(1),
            next_way: 0,
            worth: Worth::FIRST,
            repeated: 0,
        };
        (sequences, memory)
    }

    /// Forgets all sequences. None of them may have a count.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.candidates.fill(0);
        self.counted_len = 0;
    }

    /// Returns the number of sequences taken.
    pub(super) const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Returns the number of words of memory used.
    #[cfg(test)]
    pub(super) fn words(&self) -> usize {
        let Self { keys, rests, candidates, counted, .. } = self;
        KEY_WORDS * keys.len() + REST_WORDS * rests.len() + candidates.len() + counted.len()
    }

    /// Returns true if a sequence is to be looked for now.
    #[inline(always)]
    pub(super) fn allow_attempt(&mut self) -> bool {
        !self.keys.is_empty() && self.worth.allows_attempt()
    }

    /// Passes on the edges of all sequences that came, with the count of each.
    pub(super) fn tell(&mut self, mut each: impl FnMut(u16, u32)) {
        for &place in self.counted.iter().take(self.counted_len) {
            if let (Some(key), Some(rest)) =
                (self.keys.get_mut(place as usize), self.rests.get(place as usize))
            {
                tell(key, rest, &mut each);
            }
        }
        self.counted_len = 0;
    }

    /// Returns the first place for a sequence.
    #[inline(always)]
    fn place(&self, block: u32, first: u64) -> usize {
        ((first ^ u64::from(block) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// Returns all places for a sequence, the first one first. Some may not exist if the memory is small.
    #[inline(always)]
    fn ways(&self, block: u32, first: u64) -> impl Iterator<Item = usize> + Clone + use<> {
        let first = self.place(block, first);
        (0..WAYS).map(move |way| first ^ way)
    }

    /// Returns the return blocks of the calls that this sequence leaves, if it comes next and can be counted.
    #[inline(always)]
    fn pushed_if_next(
        &self,
        slot: usize,
        block: u32,
        bytes: &Bytes,
        last_ip: u64,
        calls: &CachedCalls,
        top: Top,
    ) -> Option<[u32; CALLS]> {
        let key = self.keys.get(slot)?;
        let sizes = Sizes::of(key[10]);
        // One branch for all comparisons: the processor predicts it while it waits for the reads.
        let differs = bytes.differ_from([whole([key[2], key[3]]), whole([key[4], key[5]])], sizes.len)
            | u64::from(
                block ^ key[0]
                    | (middle(last_ip) ^ key[11]) & sizes.kept.mask()
                    | calls.differ(top, 0, [key[12], key[13]]),
            );
        if differs != 0 || !top.has_room(sizes.popped, sizes.rise) || key[8] == u32::MAX {
            return None;
        }
        if sizes.popped <= FIRST_CALLS && sizes.pushed <= FIRST_CALLS {
            return Some([key[14], key[15], 0, 0]);
        }
        let &[a, b, c, d] = self.rests.get(slot)?.first_chunk()?;
        (calls.differ(top, FIRST_CALLS, [a, b]) == 0).then_some([key[14], key[15], c, d])
    }

    /// Takes the known sequences that come next, at most [`TURN`]. Returns their number.
    #[inline(never)]
    pub(super) fn take(
        &mut self,
        at: &mut At,
        calls: &mut CachedCalls,
        trace: &[u8],
        place: &mut PacketPlace,
        mut edge: impl FnMut(u16),
    ) -> usize {
        let At { mut block, mut before, mut top } = *at;
        let mut here = *place;
        let (mut taken, mut packets) = (0, 0);
        while taken < TURN {
            let Some(bytes) = Bytes::at(trace, here.at) else { break };
            let mut ways = self.ways(block, bytes.first());
            let Some((slot, pushed)) = ways.find_map(|slot| {
                Some((slot, self.pushed_if_next(slot, block, &bytes, here.ip, calls, top)?))
            }) else {
                break;
            };
            let Some(key) = self.keys.get_mut(slot) else { break };
            let sizes = Sizes::of(key[10]);
            let last_ip = whole([key[6], key[7]]);
            edge(edges::edge(before, key[9] as u16).0);
            before = (key[9] >> 16) as u16;
            calls.replace(&mut top, sizes.popped, sizes.pushed, pushed);
            if key[8] == 0 {
                if let Some(counted) = self.counted.get_mut(self.counted_len) {
                    *counted = slot as u32;
                    self.counted_len += 1;
                }
            }
            key[8] += 1;
            block = key[1];
            here.pass(sizes.len, sizes.packets, last_ip, sizes.tnt_at, sizes.tip_at);
            packets += sizes.packets as usize;
            taken += 1;
        }
        if taken > 0 {
            (*at, *place) = (At { block, before, top }, here);
            self.worth.hits(packets);
            self.repeated += taken as u64;
        }
        taken
    }

    /// Notes that the next sequence is not known. Returns true if it came often enough to be remembered.
    #[inline(never)]
    fn miss(&mut self, block: u32, bytes: &Bytes) -> bool {
        let slot = self.place(block, bytes.first());
        let Some(candidate) = self.candidates.get_mut(slot) else { return false };
        let hash = (bytes.first() ^ u64::from(block) << 17).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
        let hash = hash as u32 & !TIMES;
        let times = *candidate & TIMES;
        if *candidate & !TIMES != hash {
            self.worth.misses();
            *candidate = if matches!(times, 0 | 1 | NEVER) { hash | 1 } else { *candidate - 1 };
            return false;
        }
        if times == NEVER {
            self.worth.misses();
            return false;
        }
        *candidate += 1;
        times + 1 >= OFTEN
    }
}

/// Passes on the edges of a sequence, if it came.
fn tell(key: &mut Key, rest: &Rest, each: &mut impl FnMut(u16, u32)) {
    let times = core::mem::take(&mut key[8]);
    let [_, _, _, _, number, ref edges @ ..] = *rest;
    if times > 0 {
        let halves = edges.iter().flat_map(|word| [*word as u16, (word >> 16) as u16]);
        halves.take(number as usize).for_each(|edge| each(edge, times));
    }
}
