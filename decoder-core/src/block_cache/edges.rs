//! Edges: pairs of blocks that were executed one after the other, counted in a map as fuzzers use it.
//!
//! A block's place is a hash of its address: the highest 16 bits of the product with 9E3779B97F4A7C15H, which is 2^64
//! divided by the golden ratio, modulo 2^64. An edge is the place of its second block, exclusive-or half the place of
//! its first block, as in AFL. If the previous block is unknown, half its place counts as 0: after synchronisation and
//! recovery, after an overflow, where tracing is enabled, and after an asynchronous branch, such as an interrupt. So
//! the map depends less on the arrival of interrupts. A PSB+ in between changes nothing. A block is in one section of
//! the image: if control flow continues in another section without a branch, a new block begins, with an edge to it.
//!
//! ```
//! use pugmark_decoder_core::block_cache::{ExecutionSink, edges::{EDGES, EdgeMap, place}};
//!
//! let mut counts = [0; EDGES];
//! let mut edges = EdgeMap::<true>::new(&mut counts);
//! // A visit passes on the edge from the block at 1000H to the one at 1005H, twice.
//! let edge = place(0x1005) ^ place(0x1000) >> 1;
//! edges.edges(edge, 2);
//! assert_eq!((edges.taken(), counts[usize::from(edge)]), (2, 2));
//! ```

use super::ExecutionSink;
use crate::event::{Event, EventKind};

/// The size of a map of edges: one count for each edge.
pub const EDGES: usize = 1 << 16;

/// Returns the place of the block at `ip`.
#[inline(always)]
#[must_use]
pub const fn place(ip: u64) -> u16 {
    (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

/// Returns the edge to a block with that place, and the half to keep for the next edge.
#[inline(always)]
pub(super) const fn edge(before: u16, place: u16) -> (u16, u16) {
    (place ^ before, place >> 1)
}

/// Returns true if the block before the next one is unknown after this event.
pub(super) const fn breaks(event: &Event) -> bool {
    matches!(event.kind, EventKind::Enabled { .. } | EventKind::Overflow | EventKind::AsyncBranch { .. })
}

/// A map that counts each edge taken. With `SATURATES` a count stays at 255, otherwise it continues at 0.
///
/// ```
/// use pugmark_decoder_core::block_cache::edges::{EDGES, EdgeMap};
///
/// let mut map = [0; EDGES];
/// let edges = EdgeMap::<true>::new(&mut map);
/// assert_eq!(edges.taken(), 0);
/// ```
#[derive(Debug)]
pub struct EdgeMap<'m, const SATURATES: bool> {
    counts: &'m mut [u8; EDGES],
    taken: u64,
}

impl<'m, const SATURATES: bool> EdgeMap<'m, SATURATES> {
    /// Creates a map over `counts`, which are kept and added to.
    #[must_use]
    pub const fn new(counts: &'m mut [u8; EDGES]) -> Self {
        Self { counts, taken: 0 }
    }

    /// Returns the number of edges taken.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.taken
    }
}

impl<const SATURATES: bool> ExecutionSink for EdgeMap<'_, SATURATES> {
    const EDGES: bool = true;
    const COUNTS: bool = true;

    #[inline(always)]
    fn edge(&mut self, edge: u16) {
        self.edges(edge, 1);
    }

    #[inline(always)]
    fn edges(&mut self, edge: u16, times: u32) {
        let count = &mut self.counts[usize::from(edge)];
        *count = if SATURATES {
            count.saturating_add(times.min(255) as u8)
        } else {
            count.wrapping_add(times as u8)
        };
        self.taken += u64::from(times);
    }

    fn event(&mut self, _: &Event) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        block::BlockDecoder,
        block_cache::BlockCache,
        image::{AddressSpace, Image, Section},
    };

    extern crate std;
    use std::{boxed::Box, vec, vec::Vec};

    /// 1000: je 1004; 1002: jmp 1000; 1004: jmp rax.
    const CODE: &[u8] = &[0x74, 0x02, 0xeb, 0xfc, 0xff, 0xe0];
    const SYNC: &[u8] = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
    /// TNT (not taken, not taken, taken), TIP (1000).
    const LOOP: &[u8] = b"\x12\x2d\0\x10";
    /// OVF, FUP (1000).
    const OVERFLOW: &[u8] = b"\x02\xf3\x3d\0\x10";
    /// FUP (1000), TIP (1000): an interrupt whose handler begins at the interrupted address.
    const INTERRUPT: &[u8] = b"\x3d\0\x10\x2d\0\x10";
    /// Enough bytes for the fast path.
    const TAIL: &[u8] = &[0; 16];

    fn counts<const SATURATES: bool>(parts: &[&[u8]]) -> Box<[u8; EDGES]> {
        let trace = parts.concat();
        let sections = [Section { base: 0x1000, bytes: CODE, space: AddressSpace::Any }];
        let mut memory = vec![0; 5000];
        let mut cache = BlockCache::new(&mut memory);
        let mut counts = Box::new([0; EDGES]);
        let mut decoder = BlockDecoder::new(&trace, Image::new(&sections));
        while decoder.sync_forward().is_some() {
            let end = decoder.visit(&mut cache, &mut EdgeMap::<SATURATES>::new(&mut counts));
            assert_eq!(end, Ok(()), "{trace:x?}");
        }
        counts
    }

    /// Returns the edges of a path through the blocks at these addresses, by the definition.
    fn expected(paths: &[&[u64]]) -> Box<[u8; EDGES]> {
        let mut counts = Box::new([0_u8; EDGES]);
        for path in paths {
            let mut before = 0;
            for &ip in *path {
                let place = (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16;
                counts[usize::from(place ^ before)] += 1;
                before = place >> 1;
            }
        }
        counts
    }

    #[test]
    fn an_edge_is_a_pair_of_blocks() {
        // The path begins at 1000, goes twice through 1002 and 1000, then to 1004 and back to 1000.
        const ROUND: [u64; 4] = [0x1000, 0x1002, 0x1002, 0x1004];
        let round: Vec<u64> = ROUND.to_vec();
        let twice = [&round[..], &round].concat();
        for (parts, paths) in [
            (&[SYNC, LOOP, TAIL][..], &[&round[..]][..]),
            (&[SYNC, LOOP, LOOP, TAIL], &[&twice]),
            (&[SYNC, LOOP, SYNC, LOOP, TAIL], &[&twice]),
            (&[SYNC, LOOP, OVERFLOW, LOOP, TAIL], &[&round, &round]),
            (&[SYNC, LOOP, INTERRUPT, LOOP, TAIL], &[&round, &round]),
        ] {
            let (found, expected) = (counts::<false>(parts), expected(paths));
            let taken = |counts: &[u8; EDGES]| {
                let some = counts.iter().enumerate().filter(|(_, count)| **count > 0);
                some.map(|(edge, count)| (edge, *count)).collect::<Vec<_>>()
            };
            assert_eq!(taken(&found), taken(&expected), "{parts:x?}");
        }
    }

    #[test]
    fn a_place_is_the_highest_bits_of_a_product_with_the_golden_ratio() {
        // Fibonacci numbers approximate the ratio as closely as 64 bits allow.
        let (mut less, mut more) = (1_u128, 1_u128);
        for _ in 0..91 {
            (less, more) = (more, less + more);
        }
        let ratio = (less << 64) / more;
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..crate::rounds(1_000) {
            let ip = rng.u64(..);
            assert_eq!(place(ip), ((u128::from(ip) * ratio) >> 48) as u16, "{ip:x}");
        }
    }

    #[test]
    fn each_edge_that_is_taken_counts_wherever_it_leads() {
        for rounds in [1, 3, 300] {
            let trace = [SYNC, &LOOP.repeat(rounds), TAIL].concat();
            let sections = [Section { base: 0x1000, bytes: CODE, space: AddressSpace::Any }];
            let (mut memory, mut counts) = (vec![0; 5000], Box::new([0; EDGES]));
            let mut edges = EdgeMap::<true>::new(&mut counts);
            let mut decoder = BlockDecoder::new(&trace, Image::new(&sections));
            decoder.sync_forward();
            assert_eq!(decoder.visit(&mut BlockCache::new(&mut memory), &mut edges), Ok(()));
            // Four blocks in each round.
            assert_eq!(edges.taken(), 4 * rounds as u64);
        }
    }

    #[test]
    fn a_count_stays_at_its_most_or_wraps_around() {
        let trace = [SYNC, &LOOP.repeat(300), TAIL];
        // The edge from 1004 to 1000 is taken 299 times, each of the two edges within the loop 300 times.
        let most = |counts: &[u8; EDGES]| counts.iter().copied().max();
        assert_eq!(most(&counts::<true>(&trace)), Some(255));
        assert_eq!(most(&counts::<false>(&trace)), Some((300 % 256) as u8));
    }
}
