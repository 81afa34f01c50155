//! Compares the block layer with the instruction flow.

use crate::subject::Subject;
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{
    Error,
    block::{self, BlockDecoder, Slot},
    event::Event,
    flow::{self, InsnDecoder},
    image::Image,
    mode::ExecMode,
};

/// Checks that blocks, expanded, hold the instructions that the instruction flow returns, between the same events and
/// with the same errors, however much memory the block decoder has for code.
///
/// # Panics
/// If they differ.
pub fn check(data: &[u8]) {
    let Ok((subject, slots)) = made(&mut Unstructured::new(data)) else { return };
    let (sections, config) = (subject.sections(), subject.config);
    let image = Image::new(&sections);
    let mut insns = InsnDecoder::with_config(&subject.trace, image, config);
    let mut memory = vec![Slot::default(); slots];
    let mut blocks = BlockDecoder::with_config(&subject.trace, image, &mut memory, config);
    let mut steps = 0;
    loop {
        let psb = insns.resync();
        assert_eq!(blocks.resync(), psb);
        if psb.is_none() {
            break;
        }
        loop {
            steps += 1;
            assert!(steps <= subject.most_steps(), "more than {steps} blocks and events");
            match blocks.next() {
                Ok(Some(block::Item::Block(block))) => {
                    assert!(block.insns > 0, "{block:x?}");
                    let mut last = None;
                    for (ip, _) in blocks.insns(&block) {
                        let block::Block { mode, speculative, .. } = block;
                        assert_eq!(next(&mut insns), Step::Insn { ip, mode, speculative }, "{block:x?}");
                        last = Some(ip);
                    }
                    assert_eq!(last, Some(block.end_ip), "{block:x?}");
                }
                Ok(Some(block::Item::Event(event))) => assert_eq!(next(&mut insns), Step::Event(event)),
                Ok(None) => {
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
}

fn made(u: &mut Unstructured<'_>) -> Result<(Subject, usize)> {
    let slots = *u.choose(&[0, 1, 4, 16, 64, 1024])?;
    Ok((Subject::made(u)?, slots))
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
    /// The trace ends, with the decoder at this address.
    End(Option<u64>),
    Error(Error),
}

fn next(decoder: &mut InsnDecoder<'_>) -> Step {
    match decoder.next() {
        Ok(Some(flow::Item::Insn(flow::Insn { ip, mode, speculative, .. }))) => {
            Step::Insn { ip, mode, speculative }
        }
        Ok(Some(flow::Item::Event(event))) => Step::Event(event),
        Ok(None) => Step::End(decoder.ip()),
        Err(error) => Step::Error(error),
    }
}
