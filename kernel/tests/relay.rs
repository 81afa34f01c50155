//! A trace is read on another processor while it is written: nothing is lost and nothing comes twice.

mod common;

use common::{Collector, Machine, assert_same, run_within, tips};
use pugmark_kernel::drain::{Relay, RelayWriter};
use pugmark_kernel::intel::pt::{Layout, Mode, RegionSize};
use pugmark_kernel::pmi::Pmi;
use pugmark_model::intel::IntelSettings;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Traces on this thread until there were `pmis` PMIs; returns all jumps. `waits`: this processor lets the reader catch
/// up.
fn trace(mut writer: RelayWriter<'_>, pmis: u32, waits: bool) -> Vec<u64> {
    let machine = Machine::with_memory("skylake", IntelSettings::default(), 128 << 10);
    machine.jump_far();
    let mut handler = machine.handler();
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), Mode::StopWhenFull { spare: 2 });
    let mut served = 0;
    for n in 1.. {
        if served == pmis || !waits && n > 100_000 {
            break;
        }
        if machine.jump().is_some() {
            let pmi = machine.interrupt(&mut handler, &mut [&mut tracing.source(&mut writer)]);
            served += u32::from(pmi == Pmi::Served);
        } else if !waits && n % 1000 == 0 {
            // A full trace makes no PMI.
            tracing.drain(&mut writer).unwrap();
        }
        // Then all regions that a PMI hands over have room.
        while waits && writer.room() < 0x4000 {
            thread::yield_now();
        }
    }
    let mut stopped = tracing.stop().map_err(|failed| failed.fault).unwrap();
    while !stopped.trace.drain_to(&mut writer) {
        thread::yield_now();
    }
    assert_eq!(stopped.loss.is_none(), waits, "{}", stopped.loss);
    machine.jumps()
}

fn relayed(pmis: u32, waits: bool, slow: bool) -> (Collector, Vec<u64>) {
    let mut memory = vec![0; if waits { 0x5234 } else { 0x1234 }];
    let mut relay = Relay::new(&mut memory);
    let (writer, mut reader) = relay.split();
    let done = AtomicBool::new(false);
    /// A guard that announces the end of the trace, also when a test fails.
    struct Ended<'a>(&'a AtomicBool);
    impl Drop for Ended<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut collector = Collector::new();
            loop {
                let last = done.load(Ordering::Acquire);
                reader.drain_to(&mut collector);
                if last {
                    return collector;
                }
                match slow {
                    true => thread::sleep(std::time::Duration::from_millis(20)),
                    false => thread::yield_now(),
                }
            }
        });
        let ended = Ended(&done);
        let jumps = trace(writer, pmis, waits);
        drop(ended);
        (other.join().unwrap(), jumps)
    })
}

/// The number of PMIs on each of four processors, and with PUGMARK_LONG=1.
const PMIS: u32 = 200;
const LONG: u32 = 10_000;

#[test]
fn four_processors_hand_over_all_of_their_traces_at_the_same_time_and_no_byte_twice() {
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let pmis = if long { LONG } else { PMIS };
    thread::scope(|scope| {
        for processor in 0..4 {
            scope.spawn(move || {
                let (collector, jumps) = relayed(pmis, true, false);
                assert_same(&tips(collector.whole()), &jumps, "all of it, once");
                println!("processor {processor}: {pmis} PMIs, {} jumps, none lost or twice", jumps.len());
            });
        }
    });
}

#[test]
fn a_reader_that_is_too_slow_finds_gaps_where_something_is_missing() {
    let (collector, jumps) = relayed(u32::MAX, false, true);
    assert!(!collector.gaps.is_empty());
    let mut at = 0;
    for stretch in &collector.stretches {
        at = run_within(&tips(stretch), &jumps, at).expect("what came was executed, in this order");
    }
}
