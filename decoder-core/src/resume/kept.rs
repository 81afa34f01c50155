//! The state that a stream keeps between two slices.

use crate::{block_cache::Scratch, flow::WalkState};

/// The memory of a [`BlockStream`](super::BlockStream) or a [`BranchEventStream`](super::BranchEventStream): `N` bytes
/// for parts of slices, and about five kilobytes for the decoder's state, which stays in place from slice to slice. So
/// the stream itself is a few hundred bytes, and decodes on a small stack.
///
/// [`KEPT`](super::KEPT) bytes are enough; fewer than 1024 do not compile. A kernel provides it as a `static` or in
/// memory of its own: it is larger than all the stack that decoding needs.
#[derive(Debug)]
pub struct Kept<const N: usize = { super::KEPT }> {
    pub(super) bytes: [u8; N],
    pub(super) state: WalkState,
    pub(super) scratch: Scratch,
}

impl<const N: usize> Kept<N> {
    /// Creates the memory for one stream.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; N], state: WalkState::new(), scratch: Scratch::new() }
    }
}

impl<const N: usize> Default for Kept<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        block_cache::{BlockCache, ExecutionSink},
        config::Config,
        event::Event,
        image::{AddressSpace, Image, Section},
        packet::Tnt,
        query::BranchEventSink,
        resume::{BlockStream, BranchEventStream},
    };

    /// A counter of outcomes.
    #[derive(Default)]
    struct Count(u64);

    impl BranchEventSink for Count {
        fn outcomes(&mut self, outcomes: Tnt) {
            self.0 += u64::from(outcomes.len);
        }

        fn target(&mut self, _: Option<u64>) {}

        fn event(&mut self, _: &Event) {}
    }

    struct Nothing;

    impl ExecutionSink for Nothing {
        fn event(&mut self, _: &Event) {}
    }

    extern crate std;
    use std::vec;

    #[test]
    fn of_a_slice_only_its_end_is_copied() {
        let mut kept = <Kept>::new();
        kept.bytes.fill(0xa5);
        let (mut memory, mut count) = ([0; 5_000], Count::default());
        // 1000: je 1000
        let sections = [Section { base: 0x1000, bytes: &[0x74, 0xfe], space: AddressSpace::Any }];
        // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNTs
        let start = b"\
            \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
        let trace = [&start[..], &vec![0xfe; 6_000]].concat();
        let mut answers = BranchEventStream::new(Config::new(), &mut kept);
        trace.chunks(2_000).for_each(|slice| answers.decode(slice, &mut count));
        answers.finish(&mut count);
        assert!(count.0 >= 36_000);
        assert!(
            kept.bytes[200..].iter().all(|byte| *byte == 0xa5),
            "{}",
            kept.bytes.iter().rposition(|b| *b != 0xa5).unwrap()
        );

        kept.bytes.fill(0xa5);
        let mut cache = BlockCache::new(&mut memory);
        let mut blocks = BlockStream::new(Image::new(&sections), Config::new(), &mut kept);
        trace.chunks(2_000).for_each(|slice| blocks.decode(slice, &mut cache, &mut Nothing));
        blocks.finish(&mut cache, &mut Nothing);
        assert!(kept.bytes[200..].iter().all(|byte| *byte == 0xa5));
    }
}
