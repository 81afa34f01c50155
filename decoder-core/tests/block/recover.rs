//! After an error both decoders continue at the same place, without a PSB.

use crate::common::{scenarios, sections};
use pugmark_decoder_core::{
    Error,
    block::{BlockDecoder, BlockItem},
    block_cache::{BlockCache, ExecutionSink},
    config::Config,
    event::Event,
    flow::{FlowItem, InsnDecoder, Recovered},
    image::{AddressSpace, Image, Section},
};
use std::cell::{Cell, RefCell};

/// A result of a decoder, with blocks split into instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Insn(u64),
    Event(Event),
    Error(Error),
    Recovery(Result<Recovered, Error>),
}

/// Maximum number of recoveries of a decoder: from one place it may reach the same error again.
const RECOVERIES: usize = 20;

/// Continues as long as possible. `next` appends the next results, and `recover` recovers.
fn steps<D>(
    decoder: &mut D,
    next: impl Fn(&mut D, &mut Vec<Step>) -> Result<bool, Error>,
    recover: impl Fn(&mut D) -> Result<Recovered, Error>,
) -> Vec<Step> {
    let (mut steps, mut recoveries) = (vec![], 0);
    loop {
        match next(decoder, &mut steps) {
            Ok(true) => continue,
            Ok(false) => return steps,
            Err(error) => steps.push(Step::Error(error)),
        }
        loop {
            let recovered = recover(decoder);
            steps.push(Step::Recovery(recovered));
            recoveries += 1;
            match recovered {
                _ if recoveries > RECOVERIES => return steps,
                Ok(Recovered::Event(_)) => {}
                Ok(Recovered::Place) => break,
                Ok(Recovered::End) | Err(_) => return steps,
            }
        }
    }
}

/// Returns the results of both decoders, and the places where they continue after errors.
pub(crate) fn recovered(trace: &[u8], image: Image<'_>, config: Config<'_>, what: &str) -> Vec<Step> {
    let mut insns = InsnDecoder::with_config(trace, image, config);
    if insns.sync_forward().is_none() {
        return vec![];
    }
    let next = |decoder: &mut InsnDecoder<'_>, steps: &mut Vec<Step>| {
        let item = decoder.next()?;
        steps.extend(item.map(|item| match item {
            FlowItem::Insn(insn) => Step::Insn(insn.ip),
            FlowItem::Event(event) => Step::Event(event),
        }));
        Ok(item.is_some())
    };
    let expected = steps(&mut insns, next, InsnDecoder::recover);
    for words in [0, 5000] {
        let mut memory = vec![0; words];
        let (cache, after) = (RefCell::new(BlockCache::new(&mut memory)), Cell::new(None));
        let mut blocks = BlockDecoder::with_config(trace, image, config);
        blocks.sync_forward();
        let next = |decoder: &mut BlockDecoder<'_>, steps: &mut Vec<Step>| {
            if let Some(error) = after.take() {
                return Err(error);
            }
            let mut item = [BlockItem::NONE];
            let item = match decoder.fill(&mut cache.borrow_mut(), &mut item) {
                (0, end) => return end.map(|()| false),
                (_, end) => {
                    // An error comes with the items before it.
                    after.set(end.err());
                    item[0]
                }
            };
            match item {
                BlockItem::Block(block) => {
                    steps.extend(decoder.insns(&block).map(|(ip, _)| Step::Insn(ip)));
                }
                BlockItem::Event(event) => steps.push(Step::Event(event)),
            }
            Ok(true)
        };
        let found = steps(&mut blocks, next, BlockDecoder::recover);
        let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        assert_eq!(found.get(same), expected.get(same), "{what}, {words} words, step {same}: {trace:02x?}");
    }
    expected
}

#[test]
fn after_an_error_both_decoders_recover_at_the_same_place() {
    let mut random = fastrand::Rng::with_seed(0x7265_636f);
    let mut places = 0;
    let all = scenarios();
    for round in 0..4_000 {
        let (name, scenario) = &all[round % all.len()];
        let sections = sections(scenario);
        let mut trace = scenario.trace.repeat(2);
        for _ in 0..random.usize(0..4) {
            let at = random.usize(..trace.len());
            match random.u8(..3) {
                0 => trace[at] ^= 1 << random.u8(..8),
                1 => trace.insert(at, random.u8(2..128) << 1),
                _ => drop(trace.remove(at)),
            }
        }
        let what = format!("{name}, round {round}");
        let steps = recovered(&trace, Image::new(&sections), scenario.config, &what);
        places += steps.iter().filter(|step| **step == Step::Recovery(Ok(Recovered::Place))).count();
    }
    assert!(places > 1000, "{places}");
}

/// A sink that collects edges.
#[derive(Default)]
struct Edges(Vec<u16>);

impl ExecutionSink for Edges {
    const EDGES: bool = true;

    fn edge(&mut self, edge: u16) {
        self.0.push(edge);
    }

    fn event(&mut self, _: &Event) {}
}

#[test]
fn no_edge_leads_over_what_is_lost_in_a_recovery() {
    // 1000: jmp rax
    let sections = [Section { base: 0x1000, bytes: &[0xff, 0xe0], space: AddressSpace::Any }];
    // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND; TIP (1000), TIP (3000), where there is no code, TIP (1000) three
    // times.
    let trace = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
        \x2d\0\x10\x2d\0\x30\x2d\0\x10\x2d\0\x10\x2d\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for words in [0, 5000] {
        let mut memory = vec![0; words];
        let mut cache = BlockCache::new(&mut memory);
        let mut decoder = BlockDecoder::new(trace, Image::new(&sections));
        decoder.sync_forward();
        let (mut before, mut after) = (Edges::default(), Edges::default());
        decoder.visit(&mut cache, &mut before).unwrap_err();
        assert_eq!(decoder.recover(), Ok(Recovered::Place));
        decoder.visit(&mut cache, &mut after).unwrap();
        assert_ne!(before.0[0], before.0[1]);
        assert_eq!(after.0[..2], before.0[..2], "{words} words: {:x?}", before.0);
    }
}
