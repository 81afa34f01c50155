//! The machine under test: registers, a local APIC, and sources of PMIs.

use crate::fake::FakeMsr;
use crate::lapic::{LocalApic, LvtPc};
use crate::msr::{GeneralProtection, GlobalStatus, GlobalStatusReset, Msr, Register};
use crate::pmi::{Abandoned, Handler, Pmi, PmiSource, Requests, Route};
use std::cell::RefCell;
use std::rc::Rc;

/// Registers and a local APIC that log each access.
#[derive(Clone)]
pub(super) struct PmiMachine(pub(super) Rc<RefCell<PmiState>>);

pub(super) struct PmiState {
    log: Vec<String>,
    /// The number of times that the status will still be set.
    pub(super) requests: u32,
    /// The number of requests still to come when the LVT entry is unmasked.
    pub(super) at_unmask: u32,
    pub(super) bits: GlobalStatus,
    /// Bits that are always set, independent of the sources.
    pub(super) others: GlobalStatus,
    pub(super) acked: Vec<GlobalStatus>,
    pub(super) lvt: u32,
    rest: FakeMsr,
}

impl PmiMachine {
    pub(super) fn new(requests: u32) -> Self {
        Self(Rc::new(RefCell::new(PmiState {
            log: Vec::new(),
            requests,
            at_unmask: 0,
            bits: GlobalStatus::TRACE_TOPA_PMI,
            others: GlobalStatus::empty(),
            acked: Vec::new(),
            lvt: 0x1_0400,
            rest: FakeMsr::new(),
        })))
    }

    pub(super) fn source(&self, status: GlobalStatus) -> FakeSource {
        FakeSource {
            machine: self.clone(),
            status,
            route: Route::Counters,
            seen: Vec::new(),
            deaf: false,
            fault: false,
            late: 0,
            abandoned: None,
        }
    }

    pub(super) fn lvt_writes(&self) -> Vec<String> {
        self.log().into_iter().filter(|line| line.starts_with("lvt")).collect()
    }

    pub(super) fn handle(
        &self,
        handler: &mut Handler,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        self.handle_at(None, handler, sources)
    }

    pub(super) fn handle_at(
        &self,
        interrupted: Option<u64>,
        handler: &mut Handler,
        sources: &mut [&mut dyn PmiSource],
    ) -> Result<Pmi, GeneralProtection> {
        let (mut msr, mut apic) = (self.clone(), self.clone());
        match interrupted {
            Some(rip) => handler.handle_at(rip, &mut msr, &mut apic, sources),
            None => handler.handle(&mut msr, &mut apic, sources),
        }
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.0.borrow().log.clone()
    }

    fn note(&self, what: &str) {
        self.0.borrow_mut().log.push(what.to_string());
    }
}

// SAFETY: the registers represent no hardware.
unsafe impl Msr for PmiMachine {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        if address != GlobalStatus::ADDRESS {
            return self.0.borrow_mut().rest.rdmsr(address);
        }
        self.note("status");
        let state = self.0.borrow();
        let asking = if state.requests > 0 { state.bits } else { GlobalStatus::empty() };
        Ok(asking.union(state.others).bits())
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        assert_eq!(address, GlobalStatusReset::ADDRESS);
        self.note("ack");
        let mut state = self.0.borrow_mut();
        let acked = GlobalStatus::from_bits_retain(value);
        if acked.intersects(state.bits) {
            state.requests = if state.requests == u32::MAX { u32::MAX } else { state.requests - 1 };
        }
        let others = state.others.difference(acked);
        state.others = others;
        state.acked.push(acked);
        Ok(())
    }
}

// SAFETY: the entry represents no hardware.
unsafe impl LocalApic for PmiMachine {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        Ok(true)
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        Ok(LvtPc(self.0.borrow().lvt))
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
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

pub(super) struct FakeSource {
    machine: PmiMachine,
    status: GlobalStatus,
    pub(super) route: Route,
    pub(super) seen: Vec<Requests>,
    pub(super) deaf: bool,
    pub(super) fault: bool,
    pub(super) late: u8,
    pub(super) abandoned: Option<Abandoned>,
}

impl PmiSource for FakeSource {
    fn status(&self) -> Requests {
        self.status.into()
    }

    fn route(&self) -> Route {
        self.route
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.machine.note("quiesce");
        match self.fault {
            true => Err(GeneralProtection { address: 0x570, written: Some(0) }),
            false => Ok(()),
        }
    }

    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection> {
        self.machine.note("service");
        self.seen.push(seen);
        Ok(!self.deaf && !seen.is_empty())
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.machine.note("resume");
        Ok(())
    }

    fn abandon(&mut self, why: Abandoned) {
        self.machine.note("abandon");
        self.abandoned = Some(why);
    }

    fn late_requests(&self) -> u8 {
        self.late
    }
}
