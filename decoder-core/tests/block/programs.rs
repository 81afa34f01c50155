//! Random programs, traced by the model, whole and damaged.

use crate::compare::compare;
use pugmark_decoder_core::{
    block::{Block, BlockDecoder, BlockItem},
    block_cache::{BlockCache, ExecutionSink},
    config::{Config as Reading, Flags},
    errata::Errata,
    event::Event,
    hash::AddressHash,
    image::{AddressSpace, Image, Section},
};
use pugmark_generator::trace::{Topic, TraceConfig, run};

const TOPICS: [Topic; 8] = [
    Topic::Everything,
    Topic::Level,
    Topic::Cr3,
    Topic::Range,
    Topic::Stop,
    Topic::Overflow,
    Topic::Wrap,
    Topic::Events,
];

#[test]
fn random_programs_whole_and_damaged() {
    let mut random = fastrand::Rng::with_seed(0x626c_6f63_6b01);
    let (mut insns, mut blocks, mut errors, mut repeated) = (0, 0, 0, 0);
    for seed in 0..20 {
        for topic in TOPICS {
            let (program, config) = TraceConfig::random(topic, seed);
            let run = run(&program, &config, seed);
            let section = |section: &pugmark_generator::Section| (section.base, section.bytes.clone());
            let code: Vec<_> = program.sections().iter().map(section).collect();
            let any = AddressSpace::Any;
            let sections = code.iter().map(|(base, bytes)| Section { base: *base, bytes, space: any });
            let sections: Vec<_> = sections.collect();
            let image = Image::new(&sections);
            let sum = compare(&run.trace, image, Reading::new())
                .unwrap_or_else(|what| panic!("{topic:?} {seed}: {what}"));
            if !matches!(topic, Topic::Overflow | Topic::Wrap) {
                let mut truth = AddressHash::new();
                run.truth.iter().for_each(|&ip| truth.add(ip));
                assert_eq!(sum.hash, truth, "{topic:?} {seed}");
            }
            insns += sum.insns;
            repeated += sum.repeated;
            blocks += sum.blocks;
            let mut damaged = run.trace.clone();
            for _ in 0..damaged.len() / 100 {
                let at = random.usize(..damaged.len());
                damaged[at] = random.u8(..);
            }
            let ticks = random.bool();
            let flags = Flags { ticks, statuses: random.bool(), ..Flags::NONE };
            let errata = Errata { bdm64: random.bool(), skd007: random.bool(), ..Errata::NONE };
            let sum = compare(&damaged, image, Reading { flags, errata, ..Reading::new() })
                .unwrap_or_else(|what| panic!("{topic:?} {seed}, damaged: {what}"));
            errors += sum.errors;
            repeated += sum.repeated;
        }
    }
    println!("{insns} instructions in {blocks} blocks, {errors} errors, {repeated} repeats");
    assert!(insns > 200_000 && blocks * 2 < insns, "{insns} instructions in {blocks} blocks");
    assert!(errors > 100, "the damage does none: {errors}");
}

/// A sink that collects the items of a visit, and is never full.
#[derive(Default)]
struct Items(Vec<BlockItem>);

impl ExecutionSink for Items {
    const BLOCKS: bool = true;

    fn block(&mut self, block: &Block) {
        self.0.push(BlockItem::Block(*block));
    }

    fn event(&mut self, event: &Event) {
        self.0.push(BlockItem::Event(*event));
    }
}

/// Decodes as many traces as `PUGMARK_TRACES` says, or 5 000. A hundred come from one program, and share a block cache.
#[test]
fn a_visit_gives_the_same_blocks_of_damaged_traces_of_many_programs() {
    let traces: u64 =
        std::env::var("PUGMARK_TRACES").map_or(5_000, |number| number.parse().expect("a number"));
    let mut rng = fastrand::Rng::with_seed(traces);
    let (mut count, mut errors) = (0, 0);
    for seed in 0..traces.div_ceil(100) {
        let (program, config) = TraceConfig::random(TOPICS[rng.usize(..TOPICS.len())], seed);
        let run = run(&program, &config, seed);
        let code: Vec<_> =
            program.sections().iter().map(|section| (section.base, section.bytes.clone())).collect();
        let any = AddressSpace::Any;
        let sections: Vec<_> =
            code.iter().map(|(base, bytes)| Section { base: *base, bytes, space: any }).collect();
        let image = Image::new(&sections);
        let mut memory = vec![0; [300, 2_000, 50_000][rng.usize(..3)]];
        let mut cache = BlockCache::new(&mut memory);
        for _ in 0..100 {
            let mut trace = run.trace[..rng.usize(..=run.trace.len().min(1500))].to_vec();
            for _ in 0..rng.usize(0..4).min(trace.len()) {
                let at = rng.usize(..trace.len());
                trace[at] = if rng.bool() { rng.u8(..) } else { 1 << rng.u8(..8) ^ trace[at] };
            }
            let errata = Errata { bdm64: rng.bool(), skd007: rng.bool(), ..Errata::NONE };
            let reading = Reading { errata, ..Reading::new() };
            let mut slow = BlockDecoder::with_config(&trace, image, reading);
            let mut fast = BlockDecoder::with_config(&trace, image, reading);
            while let Some(psb) = slow.resync() {
                assert_eq!(fast.resync(), Some(psb), "{seed}");
                let (mut expected, mut found) = (vec![], Items::default());
                let end = loop {
                    match slow.next() {
                        Ok(Some(item)) => expected.push(item),
                        Ok(None) => break Ok(()),
                        Err(error) => break Err(error),
                    }
                };
                assert_eq!(fast.visit(&mut cache, &mut found), end, "{seed}: {trace:x?}");
                assert!(found.0 == expected, "{seed}: {trace:x?}");
                let said = |decoder: &BlockDecoder<'_>| (decoder.ip(), decoder.offset(), decoder.counters());
                assert_eq!(said(&fast), said(&slow), "{seed}: {trace:x?}");
                count += expected.len();
                errors += u64::from(end.is_err());
            }
        }
    }
    println!("{traces} traces, {count} blocks and events, {errors} errors");
}
