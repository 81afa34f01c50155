//! #GP at each access, one after the other.

use super::machine::{ALL, Kernel, PERIOD, WITH_IBS};
use pugmark_kernel::lifecycle::{NotStarted, Recording, Running};

/// Runs a whole lifetime with a fault at one access; the kernel retries the failed step. Returns the number of
/// accesses.
fn live(kernel: &mut Kernel, ibs: bool, fault: Option<u32>) -> u32 {
    let what = format!("fault {fault:?}");
    let counters = kernel.counters_unit();
    let units = ibs.then(|| kernel.ibs_unit());
    let first = kernel.machine.accesses();
    if let Some(fault) = fault {
        kernel.machine.fault_in(fault);
    }
    let events = Kernel::events();
    kernel.counters = Some(match counters.start(&events) {
        Ok(running) => running,
        Err(NotStarted::Off { unit, .. }) => unit.start(&events).map_err(|failed| failed.error()).unwrap(),
        Err(stuck) => panic!("{what}: {stuck}"),
    });
    kernel.ibs = units.map(|unit| match unit.start(&Kernel::both()) {
        Ok(running) => running,
        Err(NotStarted::Off { unit, .. }) => {
            unit.start(&Kernel::both()).map_err(|failed| failed.error()).unwrap()
        }
        Err(stuck) => panic!("{what}: {stuck}"),
    });
    kernel.run(PERIOD);
    let (ops, overflows) = (kernel.ops.len(), kernel.overflows.len());
    kernel.run(2 * PERIOD);
    assert!(kernel.overflows.len() > overflows, "{what}: the counters go on");
    assert!(!ibs || kernel.ops.len() > ops, "{what}: the units go on");
    if let Some(running) = kernel.ibs.take() {
        kernel.take_last(stop(running));
    }
    let running = kernel.counters.take().unwrap();
    let stopped = stop(running).expect(&mut kernel.handler);
    let accesses = kernel.machine.accesses() - first;
    let [counted, sampled] = stopped.totals() else { panic!("two events") };
    assert_eq!(counted, sampled, "{what}: nothing is lost or counted twice");
    assert!(*counted >= 3 * u64::from(PERIOD), "{what}: {counted}");
    kernel.run(PERIOD);
    accesses
}

/// Stops a recording, and tries again if that fails.
fn stop<S: Recording>(running: Running<S>) -> S::Stopped {
    match running.stop() {
        Ok(stopped) => stopped,
        Err(failed) => failed.running.stop().unwrap(),
    }
}

/// Returns the number of accesses.
fn at_each_access(profile: &str, ibs: bool) -> u32 {
    let accesses = live(&mut Kernel::new(profile, 0), ibs, None);
    for fault in 0..accesses {
        let mut kernel = Kernel::new(profile, 0);
        live(&mut kernel, ibs, Some(fault));
        let what = format!("{profile} access {fault} of {accesses}");
        assert_eq!(kernel.unclaimed, 0, "{what}");
        let own = |address: &&u64| **address < 1 << 63;
        let ops: Vec<_> = kernel.ops.iter().filter(own).collect();
        assert!(ops.windows(2).all(|pair| pair[0] < pair[1]), "{what}: no op twice");
        let counts = |pair: &[pugmark_kernel::amd::counters::Overflow]| pair[0].count < pair[1].count;
        assert!(kernel.overflows.windows(2).all(counts), "{what}: no overflow twice");
        assert_eq!(kernel.machine.violations(), Default::default(), "{what}");
        let off = (0..4).all(|n| kernel.machine.msr(0xc001_0000 + n) == 0);
        assert!(off, "{what}: the counters are off");
        let on = |register, bit: u32| ibs && kernel.machine.msr(register) >> bit & 1 == 1;
        assert!(!on(0xc001_1030, 48) && !on(0xc001_1033, 17), "{what}: the units are off");
    }
    accesses
}

#[test]
fn counters_with_a_fault_at_each_access() {
    let points: u32 = ALL.into_iter().map(|profile| at_each_access(profile, false)).sum();
    println!("AMD's counters: #GP at {points} points tried, none bad");
    assert!(points > 100, "{points}");
}

#[test]
fn counters_and_ibs_with_a_fault_at_each_access() {
    let points: u32 = WITH_IBS.into_iter().map(|profile| at_each_access(profile, true)).sum();
    println!("AMD's counters and IBS: #GP at {points} points tried, none bad");
    assert!(points > 100, "{points}");
}
