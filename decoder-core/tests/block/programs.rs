//! Random programs, traced by the model, whole and damaged.

use crate::compare::compare;
use pugmark_decoder_core::{
    config::{Config as Reading, Flags},
    hash::AddressHash,
    image::{AddressSpace, Image, Section},
};
use pugmark_program::trace::{Topic, TraceConfig, run};

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
    let (mut insns, mut blocks, mut errors) = (0, 0, 0);
    for seed in 0..20 {
        for topic in TOPICS {
            let (program, config) = TraceConfig::random(topic, seed);
            let run = run(&program, &config, seed);
            let section = |section: &pugmark_program::Section| (section.base, section.bytes.clone());
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
            blocks += sum.blocks;
            let mut damaged = run.trace.clone();
            for _ in 0..damaged.len() / 100 {
                let at = random.usize(..damaged.len());
                damaged[at] = random.u8(..);
            }
            let ticks = random.bool();
            let flags = Flags { ticks, statuses: random.bool(), ..Flags::NONE };
            let sum = compare(&damaged, image, Reading { flags, ..Reading::new() })
                .unwrap_or_else(|what| panic!("{topic:?} {seed}, damaged: {what}"));
            errors += sum.errors;
        }
    }
    println!("{insns} instructions in {blocks} blocks, {errors} errors");
    assert!(insns > 200_000 && blocks * 2 < insns, "{insns} instructions in {blocks} blocks");
    assert!(errors > 100, "the damage does none: {errors}");
}
