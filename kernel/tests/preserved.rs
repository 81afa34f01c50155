//! A PSB or a PMI that is due when the trace stops, on processors that keep it until the trace resumes.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "IA32_RTIT_STATUS MSR" (PendPSB, PendToPAPMI).

mod common;

use common::{Collector, Machine, Tracing, assert_same, tips, user_code};
use pugmark_kernel::drain::Sink;
use pugmark_kernel::intel::pt::{Layout, Mode, PtState, PtTask, RegionSize};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_model::intel::IntelSettings;

/// IA32_RTIT_STATUS, and its pending bits.
const STATUS: u32 = 0x571;
const PEND_PSB: u64 = 1 << 6;
const PEND_PMI: u64 = 1 << 7;
const PSB: [u8; 4] = [0x02, 0x82, 0x02, 0x82];
const FULL: Mode = Mode::StopWhenFull { spare: 2 };

/// A sink that reads the unit's status while it is halted, before it takes the bytes.
struct Looking<'a> {
    machine: &'a Machine,
    status: u64,
    taken: Collector,
}

impl Sink for Looking<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        self.status = self.machine.msr(STATUS);
        self.taken.bytes(bytes)
    }

    fn gap(&mut self, gap: Gap) -> bool {
        self.taken.gap(gap)
    }
}

fn start(machine: &Machine, kept: bool) -> Tracing<'_> {
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 8), FULL);
    let config = user_code().inject_psb_pmi_on_enable(kept);
    machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap()
}

/// Drains after each `step` jumps. Returns how often a PSB was pending, and how often the trace then resumed with it.
fn drained(step: usize, kept: bool) -> (u32, u32) {
    let machine = Machine::new("icelake", IntelSettings::default());
    let mut tracing = start(&machine, kept);
    let mut looking = Looking { machine: &machine, status: 0, taken: Collector::new() };
    let (mut pending, mut resumed) = (0, 0);
    for _ in 0..400 {
        machine.run(step);
        let was_pending = looking.status & PEND_PSB != 0;
        let before = looking.taken.stretches[0].len();
        tracing.drain(&mut looking).unwrap();
        pending += u32::from(was_pending);
        resumed += u32::from(was_pending && looking.taken.stretches[0][before..].starts_with(&PSB));
        assert_eq!(machine.msr(STATUS) & (PEND_PSB | PEND_PMI), 0, "nothing is due twice");
    }
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    assert_eq!(stopped.loss, Loss::NONE);
    looking.taken.finish(&stopped.trace);
    assert_same(&tips(looking.taken.whole()), &machine.jumps(), "all of it");
    (pending, resumed)
}

#[test]
fn a_psb_that_is_due_at_a_stop_is_the_first_packet_when_the_trace_resumes() {
    let (mut pending, mut resumed) = (0, 0);
    for step in 3..20 {
        let (pended, came) = drained(step, true);
        pending += pended;
        resumed += came;
        assert_eq!(drained(step, false).0, 0, "none is kept where that is not asked for");
    }
    assert!(pending > 3, "{pending} were pending");
    assert_eq!(resumed, pending);
}

/// Runs until a region with INT is full and its PMI is in flight; returns the trace.
fn with_a_pmi_on_its_way(machine: &Machine) -> Tracing<'_> {
    let tracing = start(machine, true);
    let requested = || machine.msr(0x38e) & 1 << 55 != 0;
    assert!(!machine.jump_until(requested), "it has not arrived");
    tracing
}

/// Lets the PMI arrive, and serves it.
#[track_caller]
fn serve(machine: &Machine, tracing: &mut Tracing<'_>, collector: &mut Collector) {
    let mut handler = machine.handler();
    let pmis = machine.run_with(400, &mut handler, &mut tracing.source(collector));
    assert_eq!(pmis.len(), 1, "the PMI comes, and once");
}

fn late() -> Machine {
    // The PMI takes 300 instructions; a region of 4 KiB takes longer than the 400 of `serve`.
    let machine = Machine::new("icelake", IntelSettings { pmi_skid: 300, ..IntelSettings::default() });
    machine.arm(pugmark_kernel::lapic::Delivery::Nmi).unwrap();
    machine
}

#[test]
fn a_pmi_that_is_on_its_way_at_a_stop_comes_when_the_trace_resumes() {
    let machine = late();
    let mut tracing = with_a_pmi_on_its_way(&machine);
    let mut nothing = Collector { appetite: Some(0), ..Collector::new() };
    assert_eq!(tracing.drain(&mut nothing), Ok(PtState::Tracing));
    assert!(!machine.take_interrupt(), "the stop takes it back");
    let mut collector = Collector::new();
    serve(&machine, &mut tracing, &mut collector);
    assert!(!collector.stretches[0].is_empty());
}

#[test]
fn a_pmi_that_is_on_its_way_when_a_trace_is_suspended_comes_after_it_wakes() {
    let machine = late();
    let mut tracing = with_a_pmi_on_its_way(&machine);
    tracing.suspend().unwrap();
    assert!(!machine.take_interrupt(), "the stop takes it back");
    assert_eq!(tracing.wake(), Ok(PtState::Tracing));
    let mut collector = Collector::new();
    serve(&machine, &mut tracing, &mut collector);
    assert!(!collector.stretches[0].is_empty());
}

#[test]
fn a_pmi_that_is_on_its_way_at_a_switch_comes_with_its_thread() {
    let machine = late();
    let mut tracing = with_a_pmi_on_its_way(&machine);
    let config = user_code().inject_psb_pmi_on_enable(true);
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 8), FULL);
    let other = PtTask::new(&machine.capabilities(), &config, buffer).unwrap();
    let first = tracing.switch(other).map_err(|failed| failed.error).unwrap();
    assert!((0..320).all(|_| machine.jump().is_none()), "it is not the other thread's");
    tracing.switch(first).map_err(|failed| failed.error).unwrap();
    let mut collector = Collector::new();
    serve(&machine, &mut tracing, &mut collector);
    assert!(!collector.stretches[0].is_empty());
}
