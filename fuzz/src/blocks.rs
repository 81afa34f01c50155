//! Compares the block layer with the instruction flow.

use crate::subject::Subject;
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{
    Error,
    block::{self, BlockDecoder},
    block_cache::{
        BlockCache,
        edges::{EDGES, EdgeMap},
    },
    event::{Counters, Event},
    flow::{self, InsnDecoder},
    image::Image,
    mode::ExecMode,
};

/// Checks that blocks, expanded, hold the instructions of the instruction flow, between the same events and with the
/// same errors, for any number of blocks requested at a time and any size of the block cache. The edges must be the
/// same however often they were counted before.
///
/// # Panics
/// If they differ.
pub fn check(data: &[u8]) {
    let Ok((subject, words, most)) = made(&mut Unstructured::new(data)) else { return };
    let (sections, config) = (subject.sections(), subject.config);
    let image = Image::new(&sections);
    let mut insns = InsnDecoder::with_config(&subject.trace, image, config);
    let mut memory = vec![0; words];
    let mut cache = BlockCache::new(&mut memory);
    let mut items = vec![block::BlockItem::NONE; most];
    let mut blocks = BlockDecoder::with_config(&subject.trace, image, config);
    let mut steps = 0;
    loop {
        let psb = insns.resync();
        assert_eq!(blocks.resync(), psb);
        if psb.is_none() {
            break;
        }
        loop {
            let (filled, end) = blocks.fill(&mut cache, &mut items);
            steps += filled;
            assert!(steps <= subject.most_steps(), "more than {steps} blocks and events");
            for item in items.iter().take(filled) {
                match item {
                    block::BlockItem::Block(block) => {
                        assert!(block.insns > 0, "{block:x?}");
                        let (mut count, mut last) = (0, None);
                        while count < block.insns {
                            let step = next(&mut insns);
                            let Step::Insn { ip, mode, speculative } = step else {
                                panic!("{step:x?} in {block:x?}");
                            };
                            assert_eq!((mode, speculative), (block.mode, block.speculative), "{block:x?}");
                            assert!(count > 0 || ip == block.ip, "{ip:x} in {block:x?}");
                            last = Some(ip);
                            count += 1;
                        }
                        assert_eq!(last, Some(block.end_ip), "{block:x?}");
                    }
                    block::BlockItem::Event(event) => assert_eq!(next(&mut insns), Step::Event(*event)),
                }
            }
            match end {
                Ok(()) if filled == most => {}
                Ok(()) => {
                    assert_eq!(next(&mut insns), Step::End(blocks.ip()));
                    break;
                }
                Err(error) => {
                    assert_eq!(next(&mut insns), Step::Error(error));
                    break;
                }
            }
        }
    }
    assert_eq!(blocks.counters(), insns.counters());
    // Without memory nothing is remembered; with it, parts that recur are known the fourth time.
    let mut map = Box::new([0; EDGES]);
    let expected = edges(&subject, image, &mut BlockCache::new(&mut []), &mut map);
    for time in 1..=4 {
        let mut again = Box::new([0; EDGES]);
        assert_eq!(edges(&subject, image, &mut cache, &mut again), expected, "the {time}. time");
        assert!(again == map, "other edges the {time}. time");
    }
}

/// Counts the edges in `map`; returns their number and the decoder's counters.
fn edges(
    subject: &Subject,
    image: Image<'_>,
    cache: &mut BlockCache<'_>,
    map: &mut [u8; EDGES],
) -> (u64, Counters) {
    let mut blocks = BlockDecoder::with_config(&subject.trace, image, subject.config);
    let mut edges = EdgeMap::<false>::new(map);
    while blocks.resync().is_some() {
        // Errors are compared above.
        let _: core::result::Result<(), Error> = blocks.visit(cache, &mut edges);
    }
    (edges.taken(), blocks.counters())
}

/// Makes a subject, the block cache's words, and the number of items requested at a time.
fn made(u: &mut Unstructured<'_>) -> Result<(Subject, usize, usize)> {
    let words = *u.choose(&[0, 50, 100, 500, 5_000, 50_000])?;
    let most = *u.choose(&[1, 2, 7, 1000])?;
    Ok((Subject::made(u)?, words, most))
}

/// The next result of the instruction flow.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Insn {
        ip: u64,
        mode: ExecMode,
        speculative: bool,
    },
    Event(Event),
    /// The end of the trace, with the decoder at this address.
    End(Option<u64>),
    Error(Error),
}

fn next(decoder: &mut InsnDecoder<'_>) -> Step {
    match decoder.next() {
        Ok(Some(flow::FlowItem::Insn(flow::ExecutedInsn { ip, mode, speculative, .. }))) => {
            Step::Insn { ip, mode, speculative }
        }
        Ok(Some(flow::FlowItem::Event(event))) => Step::Event(event),
        Ok(None) => Step::End(decoder.ip()),
        Err(error) => Step::Error(error),
    }
}
