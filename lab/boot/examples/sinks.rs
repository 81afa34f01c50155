//! The cost of each use of a trace on this machine, in ticks of the time-stamp counter for each byte of the trace:
//! `cargo run --release -p pugmark-boot --example sinks`. The boot workload `sinks` prints the same in QEMU.

use core::arch::x86_64::_rdtsc;
use pugmark_boot::sinks::costs;
use pugmark_decoder_core::image::{AddressSpace, Section};
use pugmark_generator::trace::{Topic, TraceConfig, ctl, run};

/// The trace of a random program without timing packets.
const SEED: u64 = 7;
/// Number of measurements; the fastest run of each sink counts, because other programs may run in between.
const ROUNDS: usize = 200;

fn main() {
    let (program, mut config) = TraceConfig::random_small(Topic::Everything, SEED);
    config.ctl &= !(ctl::CYC_EN | ctl::MTC_EN | ctl::TSC_EN | ctl::PTW_EN | ctl::EVENT_EN | ctl::DIS_RETC);
    // About as many bytes as the trace in QEMU has, and so short that some runs are not preempted.
    config.steps = 40_000;
    let run = run(&program, &config, SEED);
    let code: Vec<_> = program
        .sections()
        .iter()
        .map(|section| Section { base: section.base, bytes: &section.bytes, space: AddressSpace::Any })
        .collect();
    let mut rounds = (0..ROUNDS).map(|_| {
        // SAFETY: every x86-64 processor has RDTSC.
        costs(&run.trace, &code, || unsafe { _rdtsc() })
    });
    let mut fastest = rounds.next().expect("a round");
    for round in rounds {
        for (fastest, cost) in fastest.iter_mut().zip(round) {
            fastest.ticks = fastest.ticks.min(cost.ticks);
        }
    }
    println!("{} bytes of trace, {} instructions", run.trace.len(), run.truth.len());
    for cost in fastest {
        println!("{}", cost.of(run.trace.len()));
    }
}
