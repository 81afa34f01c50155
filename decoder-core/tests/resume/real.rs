//! Traces of real processors, of libipt's vectors and of random programs, in slices.

use super::{check, common::everywhere, common::recorded, cuts::Cuts};
use pugmark_decoder_core::{
    config::Config,
    image::{AddressSpace, Image, Section},
};
use pugmark_generator::trace::{Topic, TraceConfig, run};
use std::{fs, path::Path};

#[test]
fn traces_of_real_processors_in_slices_decode_as_the_whole() {
    let folder = recorded::folder();
    let mut rng = fastrand::Rng::with_seed(3);
    for recorded in recorded::TRACES {
        let code = recorded.code(&folder);
        let sections = everywhere(&code);
        let config = Config { errata: recorded.errata(), ..Config::new() };
        let trace = recorded.bytes(&folder);
        let mut cuts: Vec<_> = (0..50).map(|_| rng.usize(..=trace.len())).collect();
        cuts.sort_unstable();
        for cuts in [Cuts::Each(7), Cuts::Each(64), Cuts::Each(4096), Cuts::At(cuts)] {
            check(&trace, Image::new(&sections), config, &cuts, recorded.trace);
        }
    }
}

#[test]
fn libipts_vectors_in_slices_decode_as_the_whole() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/ptt/examples");
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".cmd.json") else {
            continue;
        };
        let command: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let (Some(base), Ok(code), Ok(trace)) = (
            command["base"].as_str(),
            fs::read(folder.join(format!("{name}.bin"))),
            fs::read(folder.join(format!("{name}.pt"))),
        ) else {
            continue;
        };
        count += 1;
        let base = u64::from_str_radix(base.trim_start_matches("0x"), 16).unwrap();
        let sections = [Section { base, bytes: &code, space: AddressSpace::Any }];
        for at in 0..=trace.len() {
            check(&trace, Image::new(&sections), Config::new(), &Cuts::At(vec![at]), name);
        }
        check(&trace, Image::new(&sections), Config::new(), &Cuts::Each(1), name);
    }
    assert!(count >= 25, "only {count} vectors");
}

#[test]
fn traces_of_random_programs_in_slices_decode_as_the_whole() {
    const TOPICS: [Topic; 7] = [
        Topic::Everything,
        Topic::Level,
        Topic::Cr3,
        Topic::Range,
        Topic::Stop,
        Topic::Overflow,
        Topic::Events,
    ];
    let mut rng = fastrand::Rng::with_seed(4);
    let rounds = if std::env::var_os("PUGMARK_LONG").is_some() { 5_000 } else { 100 };
    for seed in 0..rounds {
        let (program, config) = TraceConfig::random_small(TOPICS[seed as usize % TOPICS.len()], seed);
        let mut trace = run(&program, &config, seed).trace;
        if seed % 3 == 0 && !trace.is_empty() {
            let at = rng.usize(..trace.len());
            trace[at] = rng.u8(..);
        }
        let sections: Vec<_> = program
            .sections()
            .iter()
            .map(|section| Section { base: section.base, bytes: &section.bytes, space: AddressSpace::Any })
            .collect();
        let mut cuts: Vec<_> = (0..20).map(|_| rng.usize(..=trace.len())).collect();
        cuts.sort_unstable();
        for cuts in [Cuts::Each(rng.usize(1..200)), Cuts::At(cuts)] {
            check(&trace, Image::new(&sections), Config::new(), &cuts, &format!("seed {seed}"));
        }
    }
}
