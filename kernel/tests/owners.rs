//! Ownership of Intel PT's registers: a trace notices that it was turned off, and leaves registers of other owners
//! alone.

mod common;

use common::{Collector, Machine, Registers, assert_same, tips, user_code};
use pugmark_kernel::intel::pt::{Layout, Mode, PtState, PtUnit, RegionSize};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_kernel::slot::{Interrupt, Slot, Traced};
use pugmark_model::intel::IntelSettings;
use std::cell::{Cell, RefCell};

const FULL: Mode = Mode::StopWhenFull { spare: 1 };
const RTIT_CTL: u32 = 0x570;

fn layout() -> Layout {
    Layout::topa(RegionSize::K4, 4)
}

fn write(machine: &Machine, register: u32, value: u64) {
    // SAFETY: the registers stand for no hardware.
    unsafe { machine.registers().wrmsr(register, value) }.unwrap();
}

/// The content of a slot that holds nothing: the trace is outside.
struct HoldsNothing;

impl Traced for HoldsNothing {
    fn serve<M: Msr, A: pugmark_kernel::lapic::LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [])
    }
}

/// Registers after whose next write an NMI arrives.
struct NmiAfterWrite<'a> {
    registers: Registers,
    nmi: &'a Cell<Option<&'a dyn Fn()>>,
}

// SAFETY: the registers are those of the machine's only processor.
unsafe impl Msr for NmiAfterWrite<'_> {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        self.registers.rdmsr(address)
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises this.
        unsafe { self.registers.wrmsr(address, value) }?;
        if let Some(nmi) = self.nmi.take() {
            nmi();
        }
        Ok(())
    }
}

#[test]
fn a_trace_whose_gate_is_just_closing_was_not_turned_off() {
    let machine: &Machine = Box::leak(Box::new(Machine::new("skylake", IntelSettings::default())));
    let nmi: &Cell<Option<&dyn Fn()>> = Box::leak(Box::new(Cell::new(None)));
    let processor = || (NmiAfterWrite { registers: machine.registers(), nmi }, machine.registers());
    // SAFETY: one thread uses it, with one machine.
    let slot = unsafe { Slot::<HoldsNothing, _>::new(Handler::new(Delivery::Nmi), processor) };
    let slot = Box::leak(Box::new(slot));
    let unit = machine.unit().gated_by(slot.gate());
    let running = unit.start(&user_code(), machine.buffer(layout(), FULL));
    let running = RefCell::new(running.map_err(|failed| failed.error()).unwrap());
    let sink = RefCell::new(Collector::new());
    machine.run(10);
    // TraceEn is 0, and the gate has not counted yet that it has cleared the bit.
    let drains = || {
        assert_eq!(running.borrow_mut().drain(&mut *sink.borrow_mut()), Ok(PtState::Paused));
    };
    let drains: &dyn Fn() = &drains;
    // SAFETY: the reference is taken out of the cell, by the call below, before it ends.
    nmi.set(Some(unsafe { core::mem::transmute::<&dyn Fn(), &'static dyn Fn()>(drains) }));
    slot.pause().unwrap();
    assert!(nmi.take().is_none(), "the NMI came");
    machine.run(7);
    assert_eq!(slot.resume(), Ok(true));
    assert_eq!(running.borrow_mut().resume(), Ok(PtState::Tracing));
    machine.run(20);
    let stopped = running.into_inner().stop().map_err(|failed| failed.fault).unwrap();
    let mut sink = sink.into_inner();
    sink.finish(&stopped.trace);
    assert_eq!(stopped.loss, Loss::NONE);
    assert_same(&tips(sink.whole()), &machine.jumps(), "all that ran while it was on");
}

#[test]
fn a_stop_puts_back_the_filters_that_were_there() {
    // IA32_RTIT_CR3_MATCH, IA32_RTIT_ADDR0_A and IA32_RTIT_ADDR0_B.
    const FILTERS: [(u32, u64); 3] = [(0x572, 0x7000), (0x580, 0x1000), (0x581, 0x1fff)];
    let machine = Machine::new("skylake", IntelSettings::default());
    FILTERS.iter().for_each(|&(register, value)| write(&machine, register, value));
    let config = user_code().cr3(0x5000).filter(0x40_0000, 0x40_ffff);
    let running = machine.unit().start(&config, machine.buffer(layout(), FULL));
    let running = running.map_err(|failed| failed.error()).unwrap();
    assert_eq!([0x572, 0x580, 0x581].map(|register| machine.msr(register)), [0x5000, 0x40_0000, 0x40_ffff]);
    drop(running);
    for (register, value) in FILTERS {
        assert_eq!(machine.msr(register), value, "{register:#x}");
    }
}

#[test]
fn a_stop_beside_another_trace_reads_that_it_is_on_and_nothing_else() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut suspended = machine.start(layout(), FULL);
    suspended.suspend().unwrap();
    let mut other = machine.start(layout(), FULL);
    let before = machine.accesses();
    drop(suspended);
    assert_eq!((machine.accesses() - before, machine.is_tracing()), (1, true));
    machine.run(5);
    let mut sink = Collector::new();
    assert_eq!(other.drain(&mut sink), Ok(PtState::Tracing));
    assert_same(&tips(sink.whole()), &machine.jumps(), "the other trace");
}

#[test]
fn a_trace_that_was_taken_over_is_off_and_counts_it_once() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut first = machine.start(layout(), FULL);
    machine.run(5);
    let (unit, _) = PtUnit::take_over(machine.capabilities(), machine.registers()).unwrap();
    let second = unit.start(&user_code(), machine.buffer(layout(), FULL));
    let second = second.map_err(|failed| failed.error()).unwrap();
    machine.run(5);
    first.suspend().unwrap();
    assert_eq!(*first.loss(), Loss { turned_off: 1, ..Loss::NONE });
    assert_eq!((first.last_error(), machine.is_tracing()), (None, true));
    let stretches = first.stretches().expect("it is off");
    assert_eq!(stretches.count(), 0, "how far it came is not known");
    drop(second);
    assert_eq!(first.wake(), Ok(PtState::Tracing));
    machine.run(5);
    let mut sink = Collector::new();
    assert_eq!(first.drain(&mut sink), Ok(PtState::Tracing));
    assert_eq!((&sink.gaps[..], first.loss().turned_off), (&[Gap::TurnedOff][..], 1));
    assert_same(&tips(&sink.stretches[1]), &machine.executed()[10..], "what came since");
}

#[test]
fn a_trace_that_was_turned_off_before_a_guest_counts_it_once() {
    let machine = Machine::with_vmx("skylake", IntelSettings::default(), false);
    let mut trace = machine.start(layout(), FULL);
    machine.run(5);
    write(&machine, RTIT_CTL, machine.msr(RTIT_CTL) & !1);
    let (_, state) = trace.trace_guest(|ctl| machine.guest(ctl, 5, true));
    assert_eq!((state, *trace.loss()), (Ok(PtState::Tracing), Loss { turned_off: 1, ..Loss::NONE }));
}
