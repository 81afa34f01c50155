//! A fake AMD processor for the unit tests beside the code: registers with the effects of units and counters, a local
//! APIC with its extended table, and northbridges. Addresses and bits are copied from the manuals a second time.

use super::{ExtendedLvt, LvtEntry, Northbridge};
use crate::cpuid::{CpuIdReader, CpuIdResult};
use crate::fake::FakeMsr;
use crate::lapic::{LocalApic, LvtPc};
use crate::msr::{GeneralProtection, Msr};
use std::cell::RefCell;
use std::rc::Rc;

/// The CPUID values of a processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) family: u32,
    pub(crate) model: u32,
    /// `8000_0001H:ECX`.
    pub(crate) features: u32,
    /// `8000_0008H:EBX`.
    pub(crate) extended: u32,
    /// `8000_001BH:EAX`.
    pub(crate) ibs: u32,
    /// `8000_0022H:EAX` and `EBX`.
    pub(crate) perfmon: (u32, u32),
}

const IBS: u32 = 1 << 10;
const EXTENDED_COUNTERS: u32 = 1 << 23;

const fn cpu(family: u32, model: u32, features: u32, ibs: u32) -> Cpu {
    Cpu { family, model, features, extended: 0, ibs, perfmon: (0, 0) }
}

pub(crate) const K7: Cpu = cpu(0x6, 0x8, 0, 0);
pub(crate) const K8: Cpu = cpu(0xf, 0x41, 0, 0);
pub(crate) const BARCELONA: Cpu = cpu(0x10, 0x02, IBS, 0);
pub(crate) const BULLDOZER: Cpu = cpu(0x15, 0x01, IBS | EXTENDED_COUNTERS, 0xff);
pub(crate) const TRINITY: Cpu = cpu(0x15, 0x10, IBS | EXTENDED_COUNTERS, 0xff);
pub(crate) const ZEN_1: Cpu = cpu(0x17, 0x01, IBS | EXTENDED_COUNTERS, 0x3ff);
pub(crate) const ZEN_2: Cpu = cpu(0x17, 0x31, IBS | EXTENDED_COUNTERS, 0x3ff);
pub(crate) const ZEN_3: Cpu = Cpu { extended: 1 << 31, ..cpu(0x19, 0x01, IBS | EXTENDED_COUNTERS, 0x3ff) };
pub(crate) const ZEN_4: Cpu = Cpu { perfmon: (7, 0x106), ..cpu(0x19, 0x11, IBS | EXTENDED_COUNTERS, 0xbff) };
pub(crate) const ZEN_6: Cpu =
    Cpu { perfmon: (7, 0x106), ..cpu(0x1a, 0x50, IBS | EXTENDED_COUNTERS, 0x1_fbff) };

pub(crate) const FETCH_CTL: u32 = 0xc001_1030;
pub(crate) const OP_CTL: u32 = 0xc001_1033;
pub(crate) const OP_DATA3: u32 = 0xc001_1037;
pub(crate) const IBS_CTL: u32 = 0xc001_103a;
pub(crate) const OP_CTL2: u32 = 0xc001_103e;
pub(crate) const FETCH_CTL2: u32 = 0xc001_103f;
pub(crate) const EFER: u32 = 0xc000_0080;
const GLOBAL_STATUS: u32 = 0xc000_0300;
const GLOBAL_CTL: u32 = 0xc000_0301;
const GLOBAL_STATUS_CLR: u32 = 0xc000_0302;

const FETCH_EN: u64 = 1 << 48;
const FETCH_VAL: u64 = 1 << 49;
const OP_EN: u64 = 1 << 17;
const OP_VAL: u64 = 1 << 18;

/// The processor.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cpu: Cpu,
    state: Rc<RefCell<State>>,
}

#[derive(Debug, Default)]
struct State {
    msr: FakeMsr,
    /// Interrupts that were requested.
    nmis: u32,
    lvt_pc: u32,
    /// The extended table.
    table: Vec<u32>,
    /// F3x1CC of each northbridge.
    nodes: Vec<u32>,
}

impl Machine {
    /// Returns a processor whose firmware gave IBS the second entry of four.
    pub(crate) fn new(cpu: Cpu) -> Self {
        let state = State { lvt_pc: 0x400, table: vec![0x1_0000; 4], ..State::default() };
        let machine = Self { cpu, state: Rc::new(RefCell::new(state)) };
        machine.set(IBS_CTL, 0x101);
        machine
    }

    pub(crate) fn cpuid(&self) -> impl CpuIdReader {
        let cpu = self.cpu;
        let none = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
        move |leaf, _: u32| match leaf {
            0 => CpuIdResult { eax: 0x10, ebx: 0x6874_7541, edx: 0x6974_6e65, ecx: 0x444d_4163 },
            1 => CpuIdResult { eax: signature(cpu), ..none },
            0x8000_0000 => CpuIdResult { eax: 0x8000_0022, ..none },
            0x8000_0001 => CpuIdResult { ecx: cpu.features, ..none },
            0x8000_0008 => CpuIdResult { eax: 0x3030, ebx: cpu.extended, ..none },
            0x8000_001b => CpuIdResult { eax: cpu.ibs, ..none },
            0x8000_0022 => CpuIdResult { eax: cpu.perfmon.0, ebx: cpu.perfmon.1, ..none },
            _ => none,
        }
    }

    pub(crate) fn get(&self, address: u32) -> u64 {
        self.state.borrow().msr.get(address)
    }

    pub(crate) fn set(&self, address: u32, value: u64) {
        self.state.borrow_mut().msr.set(address, value);
    }

    /// Returns the writes since the last call.
    pub(crate) fn writes(&self) -> Vec<(u32, u64)> {
        core::mem::take(&mut self.state.borrow_mut().msr.writes)
    }

    /// Returns the reads since the last call.
    pub(crate) fn reads(&self) -> Vec<u32> {
        core::mem::take(&mut self.state.borrow_mut().msr.reads)
    }

    /// Makes the access after this many more accesses fault.
    pub(crate) fn fault_in(&self, accesses: usize) {
        self.state.borrow_mut().msr.fault_in(accesses);
    }

    /// Makes writes without effect and reads return 0 from now on.
    pub(crate) fn kill(&self) {
        let mut state = self.state.borrow_mut();
        state.msr = FakeMsr::new();
        state.msr.dead = true;
    }

    /// Takes an interrupt that was requested; returns whether there was one.
    pub(crate) fn take_nmi(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let there = state.nmis > 0;
        state.nmis -= u32::from(there);
        there
    }

    pub(crate) fn set_table(&self, table: &[u32]) {
        self.state.borrow_mut().table = table.to_vec();
    }

    pub(crate) fn table(&self) -> Vec<u32> {
        self.state.borrow().table.clone()
    }

    /// Sets F3x1CC of each northbridge.
    pub(crate) fn set_nodes(&self, nodes: &[u32]) {
        self.state.borrow_mut().nodes = nodes.to_vec();
    }

    pub(crate) fn nodes(&self) -> Vec<u32> {
        self.state.borrow().nodes.clone()
    }

    /// Completes the count of the fetch unit, which then samples if it runs and has no sample. Returns whether it did.
    pub(crate) fn fetch(&self, status: u64, linear: u64, physical: u64) -> bool {
        let ctl = self.get(FETCH_CTL);
        let runs = ctl & FETCH_EN != 0 && ctl & 0xffff != 0 && self.get(FETCH_CTL2) & 1 == 0;
        if !runs || ctl & FETCH_VAL != 0 {
            return false;
        }
        self.set(FETCH_CTL, ctl | FETCH_VAL | status);
        self.set(0xc001_1031, linear);
        self.set(0xc001_1032, physical);
        self.state.borrow_mut().nmis += 1;
        true
    }

    /// Completes the count of the op unit, like [`Machine::fetch`], with random low bits in its count.
    pub(crate) fn op(&self, rip: u64, data: u64, random: u64) -> bool {
        let ctl = self.get(OP_CTL);
        let runs = ctl & OP_EN != 0 && ctl & 0x7f0_ffff != 0 && self.get(OP_CTL2) & 1 == 0;
        if !runs || ctl & OP_VAL != 0 {
            return false;
        }
        self.set(OP_CTL, ctl & !(0x7ff_ffff << 32) | OP_VAL | random << 32);
        self.set(0xc001_1034, rip);
        self.set(0xc001_1035, data);
        self.state.borrow_mut().nmis += 1;
        true
    }

    /// Completes an op that was tagged before the unit stopped (erratum 420).
    pub(crate) fn late_op(&self) {
        self.set(OP_CTL, self.get(OP_CTL) | OP_VAL);
        self.state.borrow_mut().nmis += 1;
    }

    /// Lets this many events happen in each counter that counts at this privilege level.
    pub(crate) fn count(&self, events: u64, user: bool) {
        let legacy = self.cpu.features & EXTENDED_COUNTERS == 0;
        let v2 = self.cpu.perfmon.0 & 1 == 1;
        let level = if user { 1 << 16 } else { 1 << 17 };
        let host_counts = self.get(EFER) >> 12 & 1 == 1;
        for n in 0..if legacy { 4 } else { 6 } {
            let (select, counter) = match legacy {
                true => (0xc001_0000 + n, 0xc001_0004 + n),
                false => (0xc001_0200 + 2 * n, 0xc001_0201 + 2 * n),
            };
            let select = self.get(select);
            let on = select >> 22 & 1 == 1 && (!v2 || self.get(GLOBAL_CTL) >> n & 1 == 1);
            let host_only = select >> 41 & 1 == 1 && !host_counts;
            let guest_only = select >> 40 & 1 == 1;
            if !on || select & level == 0 || host_only || guest_only || select & 0xff == 0xff {
                continue;
            }
            let sum = self.get(counter) + events;
            self.set(counter, sum & 0xffff_ffff_ffff);
            if sum >> 48 != 0 {
                self.set(GLOBAL_STATUS, self.get(GLOBAL_STATUS) | u64::from(v2) << n);
                self.state.borrow_mut().nmis += (select >> 20 & 1) as u32;
            }
        }
    }
}

fn signature(cpu: Cpu) -> u32 {
    let base = cpu.family.min(0xf);
    (cpu.family - base) << 20 | (cpu.model >> 4) << 16 | base << 8 | (cpu.model & 0xf) << 4
}

// SAFETY: the registers represent no hardware.
unsafe impl Msr for Machine {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        self.state.borrow_mut().msr.rdmsr(address)
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: as above.
        unsafe { self.state.borrow_mut().msr.wrmsr(address, value) }?;
        if address == GLOBAL_STATUS_CLR {
            self.set(GLOBAL_STATUS, self.get(GLOBAL_STATUS) & !value);
        }
        Ok(())
    }
}

// SAFETY: the entry represents no hardware.
unsafe impl LocalApic for Machine {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        Ok(true)
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        Ok(LvtPc(self.state.borrow().lvt_pc))
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        self.state.borrow_mut().lvt_pc = entry.0;
        Ok(())
    }
}

// SAFETY: the entries represent no hardware.
unsafe impl ExtendedLvt for Machine {
    fn count(&mut self) -> Result<u8, GeneralProtection> {
        Ok(self.state.borrow().table.len() as u8)
    }

    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection> {
        Ok(LvtEntry(self.state.borrow().table[usize::from(n)]))
    }

    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection> {
        self.state.borrow_mut().table[usize::from(n)] = entry.0;
        Ok(())
    }
}

// SAFETY: the registers represent no hardware.
unsafe impl Northbridge for Machine {
    fn read(&mut self, node: u8, offset: u16) -> u32 {
        let state = self.state.borrow();
        match (state.nodes.get(usize::from(node)), offset) {
            (Some(_), 0) => 0x1203_1022,
            (Some(control), 0x1cc) => *control,
            _ => !0,
        }
    }

    fn write(&mut self, node: u8, offset: u16, value: u32) {
        assert_eq!(offset, 0x1cc);
        self.state.borrow_mut().nodes[usize::from(node)] = value;
        self.set(IBS_CTL, u64::from(value));
    }
}
