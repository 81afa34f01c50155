use super::*;
use crate::fake::FakeMsr;
use crate::msr::{Msr, Register};
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn the_order_is_stop_acknowledge_serve_go_on_unmask() {
    let machine = Machine::new(1);
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let pmi = machine.handle(&mut Handler::new(Delivery::Nmi), &mut [&mut source]).unwrap();
    assert_eq!(pmi, Pmi::Served);
    assert_eq!(
        machine.log(),
        ["quiesce", "status", "ack", "service", "status", "service", "resume", "lvt 0x400", "status"]
    );
}

#[test]
fn a_request_that_comes_while_one_is_served_is_served_too() {
    let machine = Machine::new(3);
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut handler = Handler::new(Delivery::Nmi);
    assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Served));
    assert_eq!(handler.counts(), &Counts { served: 1, unannounced: 2, ..Counts::default() });
}

#[test]
fn a_request_that_the_masked_entry_dropped_is_served() {
    let machine = Machine::new(1);
    machine.0.borrow_mut().at_unmask = 1;
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut handler = Handler::new(Delivery::Nmi);
    assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Served));
    assert_eq!(handler.counts(), &Counts { served: 1, unannounced: 1, ..Counts::default() });
    assert_eq!(machine.0.borrow().lvt, 0x400);
}

#[test]
fn a_source_that_asks_for_ever_is_left_stopped_and_masked() {
    // Also where the interrupt was another's NMI, which does not mask the entry.
    for lvt in [0x1_0400, 0x400] {
        let machine = Machine::new(u32::MAX);
        machine.0.borrow_mut().lvt = lvt;
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut handler = Handler::new(Delivery::Nmi);
        assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Stuck));
        assert_eq!(handler.counts().stuck, 1);
        assert!(!machine.log().contains(&"resume".to_string()));
        assert!(LvtPc(machine.0.borrow().lvt).is_masked());
    }
}

#[test]
fn a_status_bit_that_nobody_takes_does_not_hang_the_handler() {
    let machine = Machine::new(u32::MAX);
    machine.0.borrow_mut().at_unmask = u32::MAX;
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    source.deaf = true;
    let mut handler = Handler::new(Delivery::Nmi);
    assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::Stuck));
}

#[test]
fn an_interrupt_without_a_request_is_the_local_apics_or_nobodys() {
    // (the LVT entry was masked by a delivery, one was served just before, verdict, stray)
    let table = [(false, false, Pmi::NotOurs, 0), (true, false, Pmi::Stray, 1), (false, true, Pmi::Stray, 1)];
    for (masked, echo, verdict, stray) in table {
        let machine = Machine::new(0);
        machine.0.borrow_mut().lvt = if masked { 0x1_0400 } else { 0x400 };
        let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
        let mut handler = Handler { echo, ..Handler::new(Delivery::Nmi) };
        assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(verdict));
        assert_eq!(handler.counts().stray, stray);
        assert_eq!(machine.0.borrow().lvt, 0x400);
        assert!(machine.log().contains(&"resume".to_string()));
        // The echo of one PMI is taken once.
        machine.0.borrow_mut().lvt = 0x400;
        assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(Pmi::NotOurs));
    }
}

#[test]
fn the_echo_of_a_served_pmi_is_the_local_apics() {
    let machine = Machine::new(1);
    let mut source = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut handler = Handler::new(Delivery::Nmi);
    for verdict in [Pmi::Served, Pmi::Stray, Pmi::NotOurs] {
        assert_eq!(machine.handle(&mut handler, &mut [&mut source]), Ok(verdict));
    }
}

#[test]
fn each_source_is_served_with_its_own_bits_and_others_are_left() {
    let machine = Machine::new(1);
    machine.0.borrow_mut().bits =
        GlobalStatus::TRACE_TOPA_PMI | GlobalStatus::OVF_BUF | GlobalStatus::OVF_UNCORE;
    let mut pt = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    let mut bts = machine.source(GlobalStatus::OVF_BUF);
    let mut none = machine.source(GlobalStatus::empty());
    machine.handle(&mut Handler::new(Delivery::Fixed(0x40)), &mut [&mut pt, &mut bts, &mut none]).unwrap();
    assert_eq!(pt.seen, [GlobalStatus::TRACE_TOPA_PMI, GlobalStatus::empty()]);
    assert_eq!(bts.seen, [GlobalStatus::OVF_BUF, GlobalStatus::empty()]);
    assert_eq!(none.seen, [GlobalStatus::empty(), GlobalStatus::empty()]);
    assert_eq!(machine.0.borrow().acked, [GlobalStatus::TRACE_TOPA_PMI | GlobalStatus::OVF_BUF]);
    assert_eq!(machine.0.borrow().lvt, 0x40);
}

#[test]
fn a_fault_leaves_the_sources_stopped_and_the_entry_masked() {
    let machine = Machine::new(1);
    let mut bad = machine.source(GlobalStatus::TRACE_TOPA_PMI);
    bad.fault = true;
    let mut good = machine.source(GlobalStatus::OVF_BUF);
    let fault = GeneralProtection { address: 0x570, written: Some(0) };
    assert_eq!(machine.handle(&mut Handler::new(Delivery::Nmi), &mut [&mut bad, &mut good]), Err(fault));
    assert_eq!(machine.log(), ["quiesce", "quiesce"]);
    assert_eq!(machine.0.borrow().lvt, 0x1_0400);
}

#[test]
fn arming_and_disarming_write_the_entry() {
    for (delivery, bits) in [(Delivery::Nmi, 0x400), (Delivery::Fixed(0x40), 0x40)] {
        let machine = Machine::new(0);
        let handler = Handler::new(delivery);
        handler.arm(&mut machine.clone()).unwrap();
        assert_eq!(machine.0.borrow().lvt, bits);
        handler.disarm(&mut machine.clone()).unwrap();
        assert_eq!(machine.0.borrow().lvt, bits | 1 << 16);
    }
}

/// Registers and a local APIC that log what is done to them.
#[derive(Clone)]
struct Machine(Rc<RefCell<State>>);

struct State {
    log: Vec<String>,
    /// How many more times the status is set.
    requests: u32,
    /// How many more requests come when the LVT entry is unmasked.
    at_unmask: u32,
    bits: GlobalStatus,
    acked: Vec<GlobalStatus>,
    lvt: u32,
    rest: FakeMsr,
}

impl Machine {
    fn new(requests: u32) -> Self {
        Self(Rc::new(RefCell::new(State {
            log: Vec::new(),
            requests,
            at_unmask: 0,
            bits: GlobalStatus::TRACE_TOPA_PMI,
            acked: Vec::new(),
            lvt: 0x1_0400,
            rest: FakeMsr::new(),
        })))
    }

    fn source(&self, status: GlobalStatus) -> Source {
        Source { machine: self.clone(), status, seen: Vec::new(), deaf: false, fault: false }
    }

    fn handle(
        &self,
        handler: &mut Handler,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        handler.handle(&mut self.clone(), &mut self.clone(), sources)
    }

    fn log(&self) -> Vec<String> {
        self.0.borrow().log.clone()
    }

    fn note(&self, what: &str) {
        self.0.borrow_mut().log.push(what.to_string());
    }
}

// SAFETY: the registers stand for no hardware.
unsafe impl Msr for Machine {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        if address != GlobalStatus::ADDRESS {
            return self.0.borrow_mut().rest.rdmsr(address);
        }
        self.note("status");
        let state = self.0.borrow();
        Ok(if state.requests > 0 { state.bits.bits() } else { 0 })
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        assert_eq!(address, GlobalStatusReset::ADDRESS);
        self.note("ack");
        let mut state = self.0.borrow_mut();
        state.requests = if state.requests == u32::MAX { u32::MAX } else { state.requests - 1 };
        state.acked.push(GlobalStatus::from_bits_retain(value));
        Ok(())
    }
}

// SAFETY: the entry stands for no hardware.
unsafe impl LocalApic for Machine {
    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        Ok(LvtPc(self.0.borrow().lvt))
    }

    fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        self.note(&format!("lvt {:#x}", entry.0));
        let mut state = self.0.borrow_mut();
        state.lvt = entry.0;
        if !entry.is_masked() && state.at_unmask > 0 {
            state.at_unmask = state.at_unmask.saturating_sub(1);
            state.requests = state.requests.max(1);
        }
        Ok(())
    }
}

struct Source {
    machine: Machine,
    status: GlobalStatus,
    seen: Vec<GlobalStatus>,
    deaf: bool,
    fault: bool,
}

impl PmiSource for Source {
    fn status(&self) -> GlobalStatus {
        self.status
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.machine.note("quiesce");
        match self.fault {
            true => Err(GeneralProtection { address: 0x570, written: Some(0) }),
            false => Ok(()),
        }
    }

    fn service(&mut self, seen: GlobalStatus) -> Result<bool, GeneralProtection> {
        self.machine.note("service");
        self.seen.push(seen);
        Ok(!self.deaf && !seen.is_empty())
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.machine.note("resume");
        Ok(())
    }
}
