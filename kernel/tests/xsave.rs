//! Traces whose registers XSAVES saves and XRSTORS restores.

mod common;

use common::xsave::Saved;
use common::{Collector, Machine, Ram, assert_same, tips, user_code};
use pugmark_kernel::intel::pt::{Layout, Mode, PtRunning, PtState, PtTask, PtUnit, RegionSize};
use pugmark_kernel::lifecycle::{InUse, StartError};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::Msr;
use pugmark_kernel::pmi::{Abandoned, Pmi};
use pugmark_model::intel::IntelSettings;

type Tracing<'a> = PtRunning<Saved, &'a Ram>;

const FULL: Mode = Mode::StopWhenFull { spare: 1 };
const LAYOUT: Layout = Layout::topa(RegionSize::K4, 16);

fn machine(profile: &str) -> Machine {
    Machine::with_pt_state(profile, IntelSettings::default(), 4 << 20)
}

fn unit(machine: &Machine) -> PtUnit<Saved> {
    PtUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.saved()).unwrap()
}

fn start(machine: &Machine) -> Tracing<'_> {
    let buffer = machine.buffer(LAYOUT, FULL);
    unit(machine).start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap()
}

/// Stops, and returns the targets in the bytes drained before and in the rest of the trace.
fn finish(tracing: Tracing<'_>, mut collector: Collector) -> Vec<u64> {
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    assert_eq!(stopped.loss, Loss::NONE);
    collector.finish(&stopped.trace);
    tips(collector.whole())
}

#[test]
fn threads_are_switched_by_one_xsaves_and_one_xrstors() {
    let machine = machine("icelake");
    let task = |config| PtTask::new(&machine.capabilities(), &config, machine.buffer(LAYOUT, FULL)).unwrap();
    let filtered = user_code().filter(0x40_0000, 0x40_1fff).cr3(0x5000);
    let mut running = start(&machine);
    let mut waiting = vec![(1, task(filtered)), (2, task(user_code().return_compression(false)))];
    let mut ran: [Vec<u64>; 3] = [const { Vec::new() }; 3];
    let mut here = 0;
    for slice in 0..60 {
        let before = machine.jumps().len();
        machine.run(7 + slice);
        ran[here].extend(&machine.jumps()[before..]);
        let (next, coming) = waiting.remove(0);
        let accesses = machine.accesses();
        let left = running.switch(coming).unwrap();
        assert_eq!(running.state(), PtState::Tracing);
        // One of each; two reads that show the owner of the trace, one for another owner, and the status once the trace
        // is on.
        assert_eq!(machine.accesses() - accesses, 6, "thread {next}");
        waiting.push((here, left));
        here = next;
    }
    let (last, coming) = waiting.remove(0);
    waiting.push((here, running.switch(coming).unwrap()));
    let traces = waiting.into_iter().map(|(n, task)| {
        assert_eq!(task.loss(), &Loss::NONE);
        (n, task.into_trace())
    });
    let stopped = running.stop().map_err(|_| "stop").unwrap();
    for (n, trace) in traces.chain([(last, stopped.trace)]) {
        let mut collector = Collector::new();
        collector.finish(&trace);
        let mut expected = ran[n].clone();
        if n == 1 {
            expected.retain(|target| (0x40_0010..0x40_2000).contains(target));
        }
        assert!(!expected.is_empty());
        assert_same(&tips(collector.whole()), &expected, "a thread");
    }
}

#[test]
fn a_trace_with_pmis_and_drains_is_whole_on_each_processor_and_in_each_mode() {
    let circular = Mode::Circular { interrupt_every: 2 };
    for (profile, mode) in [
        ("broadwell", FULL),
        ("skylake", FULL),
        ("skylake", circular),
        ("icelake", FULL),
        ("sapphire-rapids", circular),
    ] {
        let machine = machine(profile);
        let mut handler = machine.handler();
        let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), mode);
        let mut tracing =
            unit(&machine).start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
        let mut collector = Collector::new();
        let mut served = 0;
        for _ in 0..5 {
            let pmis = machine.run_with(8000, &mut handler, &mut tracing.source(&mut collector));
            assert!(pmis.iter().all(|pmi| *pmi == Pmi::Served), "{pmis:?}");
            served += pmis.len();
            tracing.drain(&mut collector).unwrap();
        }
        assert!(served >= 5, "{profile}: {served} PMIs");
        assert_same(&finish(tracing, collector), &machine.jumps(), profile);
    }
}

#[test]
fn unit_and_buffer_trace_again_after_a_stop() {
    let machine = machine("skylake");
    let mut unit = unit(&machine);
    for _ in 0..3 {
        let before = machine.jumps().len();
        let buffer = machine.buffer(LAYOUT, FULL);
        let tracing = unit.start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
        machine.run(50);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        assert!(!machine.is_tracing());
        let mut collector = Collector::new();
        collector.finish(&stopped.trace);
        assert_same(&tips(collector.whole()), &machine.jumps()[before..], "again");
        unit = stopped.unit;
    }
}

#[test]
fn an_owner_that_came_after_the_last_stop_is_seen() {
    let machine = machine("skylake");
    let tracing = start(&machine);
    machine.run(50);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    // SAFETY: the registers stand for no hardware.
    unsafe { machine.registers().wrmsr(0x570, 0x2109) }.unwrap();
    let error =
        stopped.unit.start(&user_code(), stopped.trace.into_buffer()).map_err(|failed| failed.error());
    assert!(matches!(error, Err(StartError::InUse(InUse::ProcessorTrace { .. }))), "{error:?}");
}

#[test]
fn an_xrstors_that_faults_leaves_the_trace_off_until_the_next_drain() {
    let machine = machine("icelake");
    let mut tracing = start(&machine);
    machine.run(50);
    // After three reads of IA32_RTIT_CTL and OUTPUT_BASE.
    machine.fault_in(3);
    let mut collector = Collector::new();
    let fault = tracing.drain(&mut collector).unwrap_err();
    assert_eq!((fault.address, fault.written.is_some()), (0x570, true));
    assert_eq!(tracing.state(), PtState::Abandoned(Abandoned::Fault(fault)));
    assert!(!machine.is_tracing());
    let off = machine.executed().len();
    machine.run(20);
    assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
    machine.run(50);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    assert_eq!(stopped.loss.abandoned, 1);
    collector.finish(&stopped.trace);
    let targets: Vec<u64> = collector.stretches.iter().flat_map(|bytes| tips(bytes)).collect();
    let executed = machine.executed();
    let traced: Vec<u64> = executed[..off].iter().chain(&executed[off + 20..]).copied().collect();
    assert_same(&targets, &traced, "before and after");
}

#[test]
fn a_kernel_that_disables_pt_state_while_a_trace_runs_loses_nothing() {
    let machine = machine("icelake");
    let mut tracing = start(&machine);
    let mut collector = Collector::new();
    for on in [true, false, true, true, false, false, true] {
        machine.run(50);
        // XSAVES saves nothing, so the registers are accessed one at a time.
        machine.enable_pt_state(on);
        let accesses = machine.accesses();
        assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
        assert_eq!(machine.accesses() - accesses, if on { 6 } else { 1 + 12 });
    }
    machine.run(50);
    assert_same(&finish(tracing, collector), &machine.jumps(), "all of it");
}

#[test]
fn a_suspended_trace_survives_that_the_processor_loses_its_registers() {
    let machine = machine("icelake");
    let mut tracing = start(&machine);
    machine.run(50);
    tracing.suspend().unwrap();
    assert!(!machine.is_tracing());
    for address in [0x570, 0x571, 0x560, 0x561, 0x572, 0x580, 0x581] {
        machine.put_back(address);
    }
    machine.run(20);
    assert_eq!(tracing.wake(), Ok(PtState::Tracing));
    machine.run(50);
    assert_same(&finish(tracing, Collector::new()), &machine.jumps(), "before and after");
}
