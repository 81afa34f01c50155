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
        block::Block,
        block_cache::{BlockCache, ExecutionSink},
        config::Config,
        event::Event,
        image::{AddressSpace, Image, Section},
        packet::Tnt,
        query::BranchEventSink,
        resume::{BlockStream, BranchEventStream, KEPT, Lost},
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
    use std::{vec, vec::Vec};

    /// Collects the blocks and the losses.
    #[derive(Default)]
    struct All(Vec<(Block, bool)>);

    impl ExecutionSink for All {
        const BLOCKS: bool = true;

        fn block(&mut self, block: &Block) {
            self.0.push((*block, false));
        }

        fn event(&mut self, _: &Event) {}

        fn lost(&mut self, _: &Lost) {
            self.0.extend(self.0.last().map(|(block, _)| (*block, true)));
        }
    }

    #[test]
    fn a_saved_stream_goes_on_as_the_stream_does_however_often() {
        // 1000: call 1006; 1005: nop; 1006: je 1000; 1008: ret
        let code = [0xe8, 1, 0, 0, 0, 0x90, 0x74, 0xf8, 0xc3];
        let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
        let psb = b"\
            \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
        // Calls, returns that are compressed, an error, and the same again.
        let part = [&psb[..], &[0xfe, 0x2a, 0x0e, 0xd6]].concat();
        let trace = [&part[..], &[0xc8], &part, &part].concat();
        let mut memory = [0; 5_000];
        let mut cache = BlockCache::new(&mut memory);
        for size in [1, 7, 40] {
            let slices: Vec<_> = trace.chunks(size).collect();
            for cut in 0..=slices.len() {
                let (mut kept, mut all) = (<Kept>::new(), All::default());
                let mut stream = BlockStream::new(Image::new(&sections), Config::new(), &mut kept);
                let (before, after) = slices.split_at(cut);
                before.iter().for_each(|slice| stream.decode(slice, &mut cache, &mut all));
                let saved = stream.save::<KEPT>().unwrap();
                let known = all.0.len();
                after.iter().for_each(|slice| stream.decode(slice, &mut cache, &mut all));
                stream.finish(&mut cache, &mut all);
                assert!(all.0.len() > 20 && all.0.iter().filter(|(_, is_lost)| *is_lost).count() == 1);
                for _ in 0..2 {
                    let (mut kept, mut again) = (<Kept>::new(), All::default());
                    let mut stream = BlockStream::restored(&saved, &mut kept);
                    assert_eq!(stream.offset(), (cut * size).min(trace.len()) as u64);
                    after.iter().for_each(|slice| stream.decode(slice, &mut cache, &mut again));
                    stream.finish(&mut cache, &mut again);
                    assert_eq!(again.0, all.0[known..], "{size} {cut}");
                }
            }
        }
    }

    #[test]
    fn a_stream_is_not_saved_in_less_memory_than_it_keeps() {
        let mut kept = <Kept>::new();
        let mut memory = [0; 5_000];
        let mut cache = BlockCache::new(&mut memory);
        let mut stream = BlockStream::new(Image::new(&[]), Config::new(), &mut kept);
        stream.decode(b"\x02\x82\x02", &mut cache, &mut Nothing);
        assert_eq!(stream.offset(), 3);
        assert!(stream.save::<2>().is_none());
        assert!(stream.save::<3>().is_some());
    }

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
