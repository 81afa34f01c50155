//! Interrupts that arrive at each step of start, handler and stop: each one is claimed, nothing is sampled twice, and
//! the units keep running.

use super::machine::{ALL, Kernel, PERIOD, WITH_IBS};

/// Starts and ends the units; returns the number of MSR accesses of each part.
fn live(kernel: &mut Kernel, ibs: bool, burst: Option<u32>) -> u32 {
    let counters = kernel.counters_unit();
    let units = ibs.then(|| kernel.ibs_unit());
    let first = kernel.machine.accesses();
    if let Some(burst) = burst {
        kernel.machine.burst_in(burst);
    }
    // An interrupt that arrives while the driver works waits until it is done.
    kernel.counters = Some(counters.start(&Kernel::events()).map_err(|failed| failed.error()).unwrap());
    if let Some(units) = units {
        kernel.ibs = Some(units.start(&Kernel::both()).map_err(|failed| failed.error()).unwrap());
    }
    kernel.serve();
    kernel.run(PERIOD);
    let (ops, overflows) = (kernel.ops.len(), kernel.overflows.len());
    kernel.run(2 * PERIOD);
    assert!(kernel.overflows.len() > overflows, "burst {burst:?}: the counters go on");
    assert!(!ibs || kernel.ops.len() > ops, "burst {burst:?}: the units go on");
    if let Some(running) = kernel.ibs.take() {
        kernel.take_last(running.stop().unwrap());
    }
    kernel.serve();
    let running = kernel.counters.take().unwrap();
    running.stop().unwrap().expect(&mut kernel.handler);
    kernel.serve();
    let accesses = kernel.machine.accesses() - first;
    kernel.run(PERIOD);
    accesses
}

/// Returns the number of accesses.
fn at_each_step(profile: &str, ibs: bool, skid: u32) -> u32 {
    let accesses = live(&mut Kernel::new(profile, skid), ibs, None);
    for burst in 0..accesses {
        let mut kernel = Kernel::new(profile, skid);
        live(&mut kernel, ibs, Some(burst));
        let what = format!("{profile} skid {skid} access {burst} of {accesses}");
        assert_eq!(kernel.unclaimed, 0, "{what}");
        let own = |address: &&u64| **address < 1 << 63;
        let ops: Vec<_> = kernel.ops.iter().filter(own).collect();
        assert!(ops.windows(2).all(|pair| pair[0] < pair[1]), "{what}: no op twice");
        let counts = |pair: &[pugmark_kernel::amd::counters::Overflow]| pair[0].count < pair[1].count;
        assert!(kernel.overflows.windows(2).all(counts), "{what}: no overflow twice");
        assert_eq!(kernel.machine.violations(), Default::default(), "{what}");
    }
    accesses
}

#[test]
fn counters_are_interrupted_at_each_access() {
    let points: u32 =
        ALL.into_iter().flat_map(|profile| [0, 20].map(|skid| at_each_step(profile, false, skid))).sum();
    println!("AMD's counters: interrupts at {points} points tried, none bad");
    assert!(points > 100, "{points}");
}

#[test]
fn counters_and_ibs_are_interrupted_at_each_access() {
    let late = WITH_IBS.map(|profile| (profile, 20));
    let kinds = late.into_iter().chain([("barcelona", 0), ("zen4", 0)]);
    let points: u32 = kinds.map(|(profile, skid)| at_each_step(profile, true, skid)).sum();
    println!("AMD's counters and IBS: interrupts at {points} points tried, none bad");
    assert!(points > 100, "{points}");
}
