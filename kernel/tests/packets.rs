//! Traces with and without the kinds of packets that a configuration can choose.

mod common;

use common::{Collector, Machine, assert_same, tips, user_code};
use pugmark_decoder_core::packet::{Packet, Packets};
use pugmark_kernel::intel::pt::{Layout, Mode, PtConfig, RegionSize};
use pugmark_kernel::loss::Loss;
use pugmark_model::intel::IntelSettings;

/// Traces conditional branches and jumps; returns the trace, and the jumps' targets.
fn traced(config: &PtConfig) -> (Vec<u8>, Vec<u64>) {
    let machine = Machine::new("sapphire-rapids", IntelSettings::default());
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 16), Mode::StopWhenFull { spare: 1 });
    let tracing = machine.unit().start(config, buffer).map_err(|failed| failed.error()).unwrap();
    for n in 0..200 {
        (0..n % 7).for_each(|_| machine.spin());
        machine.jump();
    }
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    assert_eq!(stopped.loss, Loss::NONE);
    let mut collector = Collector::new();
    collector.finish(&stopped.trace);
    (collector.whole().to_vec(), machine.jumps())
}

/// Returns the number of outcomes of conditional branches in a trace.
fn outcomes(bytes: &[u8]) -> usize {
    let outcomes = |packet| match packet {
        Packet::TntShort(tnt) | Packet::TntLong(tnt) => tnt.len,
        _ => 0,
    };
    Packets::new(bytes).map(|packet| usize::from(outcomes(packet.unwrap().1))).sum()
}

#[test]
fn without_outcomes_a_trace_has_the_targets_alone() {
    let (with, jumps) = traced(&user_code());
    assert_eq!(outcomes(&with), (0..200).map(|n| n % 7).sum::<usize>());
    assert_same(&tips(&with), &jumps, "with outcomes");
    let (without, jumps) = traced(&user_code().tnt(false));
    assert_eq!(outcomes(&without), 0);
    assert_same(&tips(&without), &jumps, "without outcomes");
    assert!(without.len() < with.len());
}
