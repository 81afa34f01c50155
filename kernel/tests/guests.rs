//! Guests in VMX non-root operation are traced.

mod common;

use common::guest::GUEST_CR3;
use common::{Collector, Machine, Ram, assert_same, tips, user_code};
use pugmark_decoder_core::packet::{Packet, Packets};
use pugmark_kernel::intel::pt::{Layout, Mode, PtConfig, PtRunning, PtState, PtUnit, RegionSize, VmxTracing};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::{Msr, RtitCtl};
use pugmark_kernel::pmi::Pmi;
use pugmark_model::intel::IntelSettings;

const FULL: Mode = Mode::StopWhenFull { spare: 1 };

fn machine() -> Machine {
    Machine::with_vmx("skylake", IntelSettings::default(), false)
}

fn start<'a, M: Msr>(machine: &'a Machine, registers: M, config: &PtConfig) -> PtRunning<M, &'a Ram> {
    let unit = PtUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), registers).unwrap();
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), FULL);
    unit.start(config, buffer).map_err(|failed| failed.error()).unwrap()
}

/// Traces the guest alone, in many short turns, with PMIs; returns the number of PMIs.
fn guests_alone<M: Msr>(machine: &Machine, registers: M) -> usize {
    let mut handler = machine.handler();
    let mut trace = start(machine, registers, &user_code());
    trace.suspend().unwrap();
    let (mut collector, mut ran, mut pmis) = (Collector::new(), Vec::new(), 0);
    for turn in 0..400 {
        let ((targets, pmi), state) = trace.trace_guest(|ctl| machine.guest(ctl, 5 + turn % 60, true));
        assert_eq!((state, machine.is_tracing()), (Ok(PtState::Suspended), false));
        ran.extend(targets);
        if pmi {
            pmis += 1;
            let served = machine.interrupt(&mut handler, &mut [&mut trace.source(&mut collector)]);
            assert_eq!(served, Pmi::Served);
        }
        // The host runs in between, and is not traced.
        machine.run(3);
    }
    assert_eq!(machine.jumps(), []);
    let stopped = trace.stop().map_err(|_| "stop").unwrap();
    assert_eq!(stopped.loss, Loss::NONE);
    collector.finish(&stopped.trace);
    assert_same(&tips(collector.whole()), &ran, "the guest's jumps");
    pmis
}

#[test]
fn guests_are_traced_alone_and_whole() {
    let machine = machine();
    let mut trace = start(&machine, machine.registers(), &user_code());
    assert_eq!(trace.vmx_tracing(), VmxTracing::Allowed);
    drop(trace);
    assert!(guests_alone(&machine, machine.registers()) > 2);
    let machine = Machine::with_vmx("icelake", IntelSettings::default(), true);
    assert!(guests_alone(&machine, machine.saved()) > 2, "with XSAVES");
}

#[test]
fn a_trace_of_host_and_guest_says_at_each_change_which_of_them_runs() {
    let machine = machine();
    let mut trace = start(&machine, machine.registers(), &PtConfig::new().os(true).user(true));
    let mut ran = Vec::new();
    for _ in 0..5 {
        machine.run(20);
        let ((targets, _), state) = trace.trace_guest(|ctl| machine.guest(ctl, 20, true));
        assert_eq!((state, machine.is_tracing()), (Ok(PtState::Tracing), true));
        ran.push(targets);
    }
    let stopped = trace.stop().map_err(|_| "stop").unwrap();
    let mut collector = Collector::new();
    collector.finish(&stopped.trace);
    let bytes = collector.whole();
    let mut pips = Packets::new(bytes).filter_map(|packet| match packet.unwrap().1 {
        Packet::Pip(pip) => Some((pip.non_root, pip.cr3)),
        _ => None,
    });
    assert_eq!(pips.next(), Some((false, 0x5000)), "the start");
    let pips: Vec<_> = pips.collect();
    assert_eq!(pips, [(true, GUEST_CR3), (false, 0x5000)].repeat(5));
    let all = tips(bytes);
    for targets in ran {
        assert!(all.windows(targets.len()).any(|run| run == targets), "each turn of the guest is in it");
    }
}

#[test]
fn a_guest_without_room_runs_untraced_and_that_is_told() {
    let machine = machine();
    let mut trace = start(&machine, machine.registers(), &user_code());
    trace.suspend().unwrap();
    let mut traced = Vec::new();
    let full = (0..1000).any(|_| {
        let ((targets, ctl), _) = trace.trace_guest(|ctl| (machine.guest(ctl, 100, true).0, ctl));
        traced.push((targets, ctl.contains(RtitCtl::TRACE_EN)));
        ctl == RtitCtl::empty()
    });
    assert!(full, "a guest was given 0");
    assert_eq!(trace.loss().full, 1);
    let mut collector = Collector::new();
    trace.drain(&mut collector).unwrap();
    let ((targets, _), _) = trace.trace_guest(|ctl| machine.guest(ctl, 50, true));
    let stopped = trace.stop().map_err(|_| "stop").unwrap();
    collector.finish(&stopped.trace);
    assert_eq!(collector.gaps.last(), Some(&Gap::Full));
    assert_same(&tips(collector.stretches.last().unwrap()), &targets, "after the drain");
    assert!(traced.iter().rev().skip(1).all(|(_, on)| *on));
}

#[test]
fn a_vm_exit_that_does_not_clear_trace_en_is_made_good() {
    let machine = machine();
    let mut trace = start(&machine, machine.registers(), &user_code());
    trace.suspend().unwrap();
    let ((targets, _), state) = trace.trace_guest(|ctl| machine.guest(ctl, 50, false));
    assert_eq!((state, machine.is_tracing()), (Ok(PtState::Suspended), false));
    let stopped = trace.stop().map_err(|_| "stop").unwrap();
    let mut collector = Collector::new();
    collector.finish(&stopped.trace);
    assert_same(&tips(collector.whole()), &targets, "the guest");
}

#[test]
fn a_fault_at_each_access_lets_the_guest_run_and_is_reported() {
    let mut faults = 0;
    for nth in 0.. {
        let machine = machine();
        let mut trace = start(&machine, machine.registers(), &user_code());
        trace.suspend().unwrap();
        machine.fault_in(nth);
        let ((first, _), state) = trace.trace_guest(|ctl| machine.guest(ctl, 50, true));
        assert_eq!(first.len(), 50);
        if machine.cancel() {
            // There are no more accesses.
            break;
        }
        faults += u32::from(state.is_err());
        assert_eq!(trace.state(), PtState::Suspended, "{nth}");
        assert!(!machine.is_tracing(), "{nth}");
        let ((second, _), state) = trace.trace_guest(|ctl| machine.guest(ctl, 50, true));
        assert_eq!(state, Ok(PtState::Suspended), "{nth}");
        let stopped = trace.stop().map_err(|_| "stop").unwrap();
        let mut collector = Collector::new();
        collector.finish(&stopped.trace);
        let all: Vec<u64> = collector.stretches.iter().flat_map(|bytes| tips(bytes)).collect();
        assert!(all.ends_with(&second), "{nth}");
    }
    assert!(faults > 5, "{faults}");
}
