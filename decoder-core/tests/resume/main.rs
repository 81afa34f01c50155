//! Traces that come in slices: wherever the cuts are, the result is that of the whole.

mod ahead;
#[path = "../common/mod.rs"]
mod common;
mod cuts;
mod gaps;
mod real;
mod sequences;
mod state;
mod whole;

use cuts::Cuts;
use pugmark_decoder_core::{
    ErrorKind,
    config::{Clocks, Config, Position, UnknownPackets},
    errata::Errata,
    image::Image,
    packet::{Context, PSB, Unknown},
};

/// Returns each scenario's trace, with a name.
fn traces() -> Vec<(String, common::notation::Scenario)> {
    let all = common::scenarios();
    assert!(all.len() > 100);
    all
}

/// Checks a trace in all layers with these cuts.
fn check(trace: &[u8], image: Image<'_>, config: Config<'_>, cuts: &Cuts, name: &str) {
    for layer in whole::LAYERS {
        let expected = layer.whole(trace, image, config);
        let got = layer.sliced(trace, image, config, cuts);
        if got == expected {
            continue;
        }
        let same = got.0.iter().zip(&expected.0).take_while(|(a, b)| a == b).count();
        panic!(
            "{trace:02x?} {name}, {layer:?}, {cuts:?}: step {same}: {:x?} instead of {:x?}, after {:x?}; {:?} and {:?}",
            got.0.get(same),
            expected.0.get(same),
            &expected.0[same.saturating_sub(3)..same],
            got.1,
            expected.1,
        );
    }
}

#[test]
fn scenarios_cut_in_two_at_each_byte_decode_as_the_whole() {
    for (name, scenario) in traces() {
        let sections = common::sections(&scenario);
        for at in 0..=scenario.trace.len() {
            check(&scenario.trace, Image::new(&sections), scenario.config, &Cuts::At(vec![at]), &name);
        }
    }
}

#[test]
fn scenarios_in_small_pieces_decode_as_the_whole() {
    for (name, scenario) in traces() {
        let sections = common::sections(&scenario);
        for size in [1, 2, 3, 7, 16, 64, 1000] {
            check(&scenario.trace, Image::new(&sections), scenario.config, &Cuts::Each(size), &name);
        }
    }
}

#[test]
fn an_unknown_packet_may_be_longer_than_all_known_ones() {
    let long = |_: &Config<'_>, position: Position<'_>, _: Context| match *position.bytes() {
        [0x05, size, ..] => Ok(Unknown { size, value: size.into() }),
        [opcode, ..] => Err(ErrorKind::UnknownOpcode(opcode)),
        [] => Err(ErrorKind::OutOfSync),
    };
    let config = Config { unknown: Some(UnknownPackets::new(&long)), ..Config::new() };
    let mut trace = PSB.to_vec();
    for size in [2, 17, 40, 255, 16] {
        trace.extend([0x05, size]);
        trace.resize(trace.len() + usize::from(size) - 2, 0x02);
    }
    // PSBEND; OVF, one more, and FUP (1000).
    trace.extend([0x02, 0x23, 0x02, 0xf3, 0x05, 40]);
    trace.resize(trace.len() + 38, 0x02);
    trace.extend([0x3d, 0x00, 0x10]);
    for at in 0..=trace.len() {
        check(&trace, Image::new(&[]), config, &Cuts::At(vec![at]), "unknown");
    }
    check(&trace, Image::new(&[]), config, &Cuts::Each(1), "unknown");
}

#[test]
fn damaged_traces_with_errata_and_clocks_cut_anywhere_decode_as_the_whole() {
    let mut rng = fastrand::Rng::with_seed(12);
    let traces = traces();
    let errata = [
        Errata::NONE,
        Errata { bdm64: true, bdm70: true, skd007: true, ..Errata::NONE },
        Errata { skd010: true, skd022: true, skl014: true, skl168: true, ..Errata::NONE },
        Errata { apl11: true, apl12: true, skz84: true, ..Errata::NONE },
    ];
    let rounds = if std::env::var_os("PUGMARK_LONG").is_some() { 200_000 } else { 4_000 };
    for round in 0..rounds {
        let (name, scenario) = &traces[rng.usize(..traces.len())];
        let (_, other) = &traces[rng.usize(..traces.len())];
        let mut trace = scenario.trace.clone();
        if rng.bool() {
            trace.extend(&other.trace);
        }
        for _ in 0..rng.usize(..4) {
            match rng.usize(..trace.len() + 1) {
                at if at == trace.len() => {}
                at if rng.bool() => trace[at] ^= 1 << rng.u8(..8),
                at if rng.bool() => drop(trace.remove(at)),
                at => trace[at] = rng.u8(..),
            }
        }
        let clocks =
            Clocks { mtc_freq: 3, nom_freq: 20, cpuid_15h_eax: 2, cpuid_15h_ebx: 250, ..Clocks::UNKNOWN };
        let mut config = Config { errata: errata[rng.usize(..errata.len())], ..scenario.config };
        if rng.bool() {
            config.clocks = clocks;
        }
        let sections = common::sections(scenario);
        let mut cuts: Vec<_> = (0..rng.usize(1..5)).map(|_| rng.usize(..=trace.len())).collect();
        cuts.sort_unstable();
        let cuts = if rng.u8(..4) == 0 { Cuts::Each(rng.usize(1..40)) } else { Cuts::At(cuts) };
        check(&trace, Image::new(&sections), config, &cuts, &format!("{name}, round {round}"));
    }
}
