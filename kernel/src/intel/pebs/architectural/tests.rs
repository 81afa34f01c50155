//! Architectural PEBS on a processor with the effects that the driver sees, written from Linux's code a second time.

use super::*;
use crate::cpuid::{CpuIdReader, CpuIdResult};
use crate::drain::Sink;
use crate::fake::{FakeFrames, FakeMsr};
use crate::intel::pebs::{Counter, PreciseEvent};
use crate::lifecycle::{Absent, InUse, Missing, NotStarted, StartError};
use crate::loss::Gap;
use crate::memory::Request;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::PmiSource;
use pugmark_decoder_core::pebs::{Format, PebsRecord, PebsRecords, Registers};
use std::cell::RefCell;
use std::rc::Rc;

const STATUS: u32 = 0x38e;
const GLOBAL_CTRL: u32 = 0x38f;
const BASE: u32 = 0x3f4;
const INDEX: u32 = 0x3f5;
const GENERAL_0: u32 = 0x1900;
const FIXED_0: u32 = 0x1980;
const EN: u64 = 1 << 32;
const FULL: u64 = 1 << 31;
/// XMM, registers and the auxiliary group, 8 or 16 branches, and counters.
const GROUPS: u32 = 1 << 3 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 17 | 1 << 29 | 1 << 30;

#[derive(Clone, Debug)]
struct ArchMachine {
    msr: Rc<RefCell<FakeMsr>>,
    leaves: [[u32; 4]; 3],
    version: u32,
}

// SAFETY: the registers represent no hardware.
unsafe impl Msr for ArchMachine {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        self.msr.borrow_mut().rdmsr(address)
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        let mut msr = self.msr.borrow_mut();
        // SAFETY: as above.
        unsafe { msr.wrmsr(address, value) }?;
        if address == 0x390 {
            let status = msr.get(STATUS);
            msr.set(STATUS, status & !value);
        }
        Ok(())
    }
}

impl ArchMachine {
    /// Returns a processor whose counters 0, 1 and 9, and the first two fixed ones, sample.
    fn new() -> Self {
        let msr = Rc::new(RefCell::new(FakeMsr::new()));
        msr.borrow_mut().set(0x1a0, 1 << 7);
        msr.borrow_mut().set(0x345, 0xf00);
        // All general-purpose counters are enabled after a reset.
        msr.borrow_mut().set(GLOBAL_CTRL, 0x3ff);
        Self { msr, leaves: [[0b11_0011, 0, 0, 0], [0, GROUPS, 0, 0], [0x203, 0x2, 0x3, 0x1]], version: 6 }
    }

    fn cpuid(&self) -> impl CpuIdReader {
        let (leaves, version) = (self.leaves, self.version);
        move |leaf: u32, sub_leaf: u32| {
            let [eax, ebx, ecx, edx] = match (leaf, sub_leaf) {
                (0, _) => [0x23, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
                (1, _) => [0x10_06f0, 0, 1 << 15, 1 << 21],
                (7, 0) => [1, 0, 0, 0],
                (7, 1) => [1 << 8, 0, 0, 0],
                (0xa, 0) => [0x0830_0800 | version, 0, 0, 0x603],
                (0x23, 0) => leaves[0],
                (0x23, 1) => [0x3ff, 0b111, 0, 0],
                (0x23, 4) => leaves[1],
                (0x23, 5) => leaves[2],
                (0x8000_0000, _) => [0x8000_0008, 0, 0, 0],
                (0x8000_0008, _) => [0x302e, 0, 0, 0],
                _ => [0; 4],
            };
            CpuIdResult { eax, ebx, ecx, edx }
        }
    }

    fn unit(&self) -> ArchPebsUnit<Self> {
        ArchPebsUnit::detect(self.cpuid(), self.clone()).unwrap()
    }

    fn start<'a>(
        &self,
        frames: &'a FakeFrames,
        config: &ArchPebsConfig,
    ) -> ArchPebsRunning<Self, &'a FakeFrames> {
        let unit = self.unit();
        let buffer = ArchPebsBuffer::allocate(frames, unit.capabilities(), 0x2000, 0x1000).unwrap();
        unit.start(buffer, config).map_err(|failed| failed.error()).unwrap()
    }

    fn get(&self, address: u32) -> u64 {
        self.msr.borrow().get(address)
    }

    fn set(&self, address: u32, value: u64) {
        self.msr.borrow_mut().set(address, value);
    }

    /// Stores the record that counter 0 asks for, as the processor does.
    fn sample(&self, frames: &FakeFrames, ip: u64) {
        let index = self.get(INDEX);
        if index & EN == 0 || self.get(GLOBAL_CTRL) & 1 == 0 || self.get(GENERAL_0 + 3) >> 63 == 0 {
            return;
        }
        let registers = Some(Registers { rip: ip + 1, ..Registers::default() });
        let record = PebsRecord {
            eventing_ip: Some(ip),
            applicable_counters: Some(1),
            registers,
            ..PebsRecord::default()
        };
        let mut bytes = [0; 512];
        let len = record.emit(Format::Architectural, &mut bytes).unwrap();
        let base = self.get(BASE);
        let (start, size) = (base & !0xfff, 0x1000 << (base & 0xf));
        let at = (index >> 4 & 0x7f_ffff) * 16;
        if at + len as u64 > size {
            self.set(INDEX, index | FULL);
            return;
        }
        frames.write(start + at, &bytes[..len]);
        let after = (at + len as u64) / 16;
        self.set(INDEX, index & !(0x7f_ffff << 4) | after << 4);
        if after >= index >> 36 & 0x7f_ffff {
            self.set(STATUS, self.get(STATUS) | 1 << 54);
        }
    }
}

/// A sink that takes some of the records that it is offered.
#[derive(Debug, Default)]
struct Taker(Vec<u64>, usize, Vec<Gap>);

impl Sink for Taker {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while self.1 > 0 && taken < bytes.len() {
            let (record, size) = PebsRecord::parse(Format::Architectural, &bytes[taken..]).unwrap();
            self.0.extend(record.eventing_ip);
            self.1 -= 1;
            taken += size;
        }
        taken
    }

    fn gap(&mut self, gap: Gap) -> bool {
        self.2.push(gap);
        true
    }
}

fn config() -> ArchPebsConfig {
    ArchPebsConfig::new()
        .general(0, PreciseEvent::INST_RETIRED, 1000)
        .fixed(1, 1 << 31)
        .groups(ArchPebsGroups::REGISTERS | ArchPebsGroups::BRANCHES_8 | ArchPebsGroups::COUNTERS)
}

#[test]
fn leaf_23h_says_which_counters_sample_and_which_groups_there_are() {
    let found = *ArchMachine::new().unit().capabilities();
    assert_eq!(
        (found.general, found.fixed, found.general_precise, found.fixed_precise),
        (0x203, 0x3, 0x2, 0x1)
    );
    let groups = ArchPebsGroups::COUNTERS
        | ArchPebsGroups::BRANCHES
        | ArchPebsGroups::XMM
        | ArchPebsGroups::REGISTERS
        | ArchPebsGroups::AUXILIARY;
    assert_eq!(found.groups, groups);
    let missing = |change: fn(&mut ArchMachine)| {
        let mut machine = ArchMachine::new();
        change(&mut machine);
        match ArchPebsUnit::detect(machine.cpuid(), machine.clone()) {
            Err(Absent::Missing(missing)) => missing,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(missing(|it| it.leaves[0][0] = 0b01_0011), Missing::ArchitecturalPebs);
    assert_eq!(missing(|it| it.leaves[0][0] = 0b10_0011), Missing::ArchitecturalPebs);
    assert_eq!(missing(|it| it.version = 5), Missing::ArchitecturalPebs);
    assert_eq!(missing(|it| it.set(0x345, 0x600)), Missing::PebsFormat { number: 6 });
    assert_eq!(missing(|it| it.set(0x1a0, 0)), Missing::PerformanceMonitoring);
    // Counters that are not there do not sample.
    assert_eq!(missing(|it| it.leaves[2] = [0x400, 0, 0x8, 0]), Missing::SamplingCounter);
}

#[test]
fn registers_are_set_up_named_last_and_cleared_at_the_stop() {
    let (machine, frames) = (ArchMachine::new(), FakeFrames::new(0x8000));
    let running = machine.start(&frames, &config());
    // IA32_PMC_GP0_CTR, CFG_A without INT, CFG_C: enable, allow, counters, 8 branches, registers, the reload value.
    assert_eq!(machine.get(GENERAL_0), (1 << 48) - 1000);
    assert_eq!(machine.get(GENERAL_0 + 1), 0x43_00c0);
    let groups = 1 << 63 | 1 << 61 | 1 << 40 | 1 << 36 | 1 << 35;
    assert_eq!(machine.get(GENERAL_0 + 3), groups | 0xffff_fc18);
    assert_eq!(
        (machine.get(FIXED_0 + 4), machine.get(FIXED_0 + 7)),
        ((1 << 48) - (1 << 31), groups | 1 << 31)
    );
    assert_eq!(machine.get(0x38d), 0x30);
    // 8 KiB: 4 KiB << 1; the threshold leaves 4 KiB.
    assert_eq!(machine.get(BASE), FakeFrames::BASE | 1);
    assert_eq!(machine.get(INDEX), EN | 0x100 << 36);
    assert_eq!(machine.get(GLOBAL_CTRL), 0x3ff | 1 << 33);
    let writes = machine.msr.borrow().writes.clone();
    let first = |register, value: fn(u64) -> bool| {
        writes.iter().position(|(address, written)| *address == register && value(*written)).unwrap()
    };
    let (named, on, counting) =
        (first(BASE, |it| it != 0), first(INDEX, |it| it & EN != 0), first(GLOBAL_CTRL, |it| it & 1 == 1));
    assert!(first(GENERAL_0 + 3, |_| true) < named && named < on && on < counting, "{writes:x?}");
    // No register of the DS area's PEBS exists.
    assert!(writes.iter().all(|(register, _)| ![0x3f1, 0x3f2, 0x600].contains(register)));
    let stopped = running.stop().unwrap();
    for register in [GENERAL_0 + 1, GENERAL_0 + 3, FIXED_0 + 7, 0x38d, BASE, INDEX] {
        assert_eq!(machine.get(register), 0, "{register:#x}");
    }
    assert_eq!(machine.get(GLOBAL_CTRL), 0x3ff);
    assert!(stopped.records().is_empty() && stopped.loss.is_none());
}

#[test]
fn records_come_in_order_and_those_that_are_not_taken_stay() {
    let (machine, frames) = (ArchMachine::new(), FakeFrames::new(0x8000));
    let mut running = machine.start(&frames, &config());
    let mut sink = Taker::default();
    let mut next = 0x1000;
    for (stored, taken) in [(3, 2), (1, 0), (5, 100), (0, 1), (2, 1)] {
        for _ in 0..stored {
            machine.sample(&frames, next);
            next += 1;
        }
        sink.1 = taken;
        running.drain(&mut sink).unwrap();
        assert_ne!(machine.get(INDEX) & EN, 0);
    }
    machine.sample(&frames, next);
    let stopped = running.stop().unwrap();
    let rest = PebsRecords::new(stopped.records(), Format::Architectural).map(|it| it.unwrap().eventing_ip);
    sink.0.extend(rest.flatten());
    assert_eq!(sink.0, (0x1000..=next).collect::<Vec<_>>());
    assert!(stopped.loss.is_none() && sink.2.is_empty());
    // Unit and buffer can be used again.
    let (unit, buffer) = stopped.into_parts();
    let running = unit.start(buffer, &config()).map_err(|failed| failed.error()).unwrap();
    machine.sample(&frames, 0x77);
    assert_eq!(PebsRecords::new(running.stop().unwrap().records(), Format::Architectural).count(), 1);
}

#[test]
fn a_pmi_at_the_threshold_drains_the_buffer_and_a_full_one_is_a_gap() {
    let (machine, frames) = (ArchMachine::new(), FakeFrames::new(0x8000));
    let mut running = machine.start(&frames, &config());
    // A record has 16 + 48 + 160 bytes.
    let until_threshold = 0x1000_u64.div_ceil(224);
    (0..until_threshold).for_each(|n| machine.sample(&frames, n));
    assert_eq!(machine.get(STATUS), 1 << 54);
    let mut sink = Taker(vec![], usize::MAX, vec![]);
    let pmi = |running: &mut ArchPebsRunning<_, _>, sink: &mut Taker| {
        let mut source = running.source(sink);
        let seen = source.status();
        source.quiesce().unwrap();
        assert_eq!(machine.get(INDEX) & EN, 0, "nothing is stored while the records are read");
        let served = source.service(seen).unwrap();
        source.resume().unwrap();
        served
    };
    assert!(pmi(&mut running, &mut sink));
    assert_eq!(sink.0.len() as u64, until_threshold);
    assert_ne!(machine.get(INDEX) & EN, 0);
    // Nobody drains: 36 records fit into 8 KiB.
    (0..50).for_each(|n| machine.sample(&frames, n));
    assert!(pmi(&mut running, &mut sink));
    assert_eq!((sink.0.len() as u64, &sink.2[..]), (until_threshold + 36, &[Gap::Full][..]));
    let stopped = running.stop().unwrap();
    assert_eq!((stopped.loss.full, stopped.loss.turned_off), (1, 0));
}

#[test]
fn what_others_do_is_noticed() {
    let (machine, frames) = (ArchMachine::new(), FakeFrames::new(0x8000));
    let mut running = machine.start(&frames, &config());
    // A VM exit has loaded IA32_PERF_GLOBAL_CTRL.
    machine.set(GLOBAL_CTRL, 0);
    running.drain(&mut Taker::default()).unwrap();
    assert_eq!(running.loss().turned_off, 1);
    // Something has cleared the buffer's name, and nobody has another one.
    machine.set(BASE, 0);
    running.drain(&mut Taker::default()).unwrap();
    assert_eq!(running.loss().turned_off, 2);
    assert_eq!(machine.get(BASE), FakeFrames::BASE | 1, "records go to no other memory");
    // A counter has overflowed, and no record was stored for it: it would count its whole width.
    machine.set(GENERAL_0, 3);
    running.drain(&mut Taker::default()).unwrap();
    assert_eq!((machine.get(GENERAL_0), running.loss().samples), ((1 << 48) - 1000, 1));
    // Another owner samples into memory of its own: it is left alone.
    machine.set(BASE, 0x7_7000);
    let before = machine.get(INDEX);
    running.drain(&mut Taker::default()).unwrap();
    let stopped = running.stop().unwrap();
    assert_eq!((machine.get(BASE), machine.get(INDEX)), (0x7_7000, before));
    assert_eq!(stopped.loss.turned_off, 3);
    // One that samples before the start keeps it out.
    let error = |machine: &ArchMachine| {
        let unit = machine.unit();
        let buffer = ArchPebsBuffer::allocate(&frames, unit.capabilities(), 0x1000, 0x10).unwrap();
        match unit.start(buffer, &config()) {
            Err(NotStarted::Off { error, .. }) => error,
            other => panic!("{:?}", other.is_ok()),
        }
    };
    assert_eq!(error(&machine), StartError::InUse(InUse::Sampler { pebs_enable: before }));
    machine.set(INDEX, 0);
    machine.set(GENERAL_0 + 1, 0x41_00c0);
    let in_use = InUse::Counter { counter: Counter::General(0), control: 0x41_00c0 };
    assert_eq!(error(&machine), StartError::InUse(in_use));
}

#[test]
fn what_the_processor_does_not_sample_is_refused() {
    let capabilities = *ArchMachine::new().unit().capabilities();
    let one = |n, period| ArchPebsConfig::new().general(n, PreciseEvent::INST_RETIRED, period);
    let xmm = ArchPebsGroups::XMM | ArchPebsGroups::ZMM_HIGH;
    let table = [
        (one(0, 1), Ok(())),
        (one(9, 1 << 31), Ok(())),
        (one(0, 5).groups(ArchPebsGroups::XMM | ArchPebsGroups::BRANCHES_16), Ok(())),
        (ArchPebsConfig::new(), Err(ArchPebsRefusal::NoCounters)),
        (one(32, 5).fixed(8, 5), Err(ArchPebsRefusal::NoCounters)),
        (one(0, 5).os(false).user(false), Err(ArchPebsRefusal::NoLevel)),
        (one(2, 5), Err(ArchPebsRefusal::NoCounter(Counter::General(2)))),
        (one(0, 5).fixed(2, 5), Err(ArchPebsRefusal::NoCounter(Counter::Fixed(2)))),
        (one(0, 0), Err(ArchPebsRefusal::Period { counter: Counter::General(0), period: 0 })),
        (
            one(0, (1 << 31) + 1),
            Err(ArchPebsRefusal::Period { counter: Counter::General(0), period: (1 << 31) + 1 }),
        ),
        (one(0, 5).groups(xmm), Err(ArchPebsRefusal::Groups(ArchPebsGroups::ZMM_HIGH))),
    ];
    for (config, expected) in table {
        assert_eq!(config.check(&capabilities), expected, "{config:?}");
    }
    let frames = FakeFrames::new(0x8000);
    let allocate = |bytes, spare| ArchPebsBuffer::allocate(&frames, &capabilities, bytes, spare).err();
    for bytes in [0, 0x800, 0x3000, 1 << 28] {
        assert_eq!(allocate(bytes, 16), Some(ArchPebsBufferError::Size { bytes }));
    }
    for spare in [0, 8, 0x1000] {
        assert_eq!(allocate(0x1000, spare), Some(ArchPebsBufferError::Spare { spare, bytes: 0x1000 }));
    }
    let request = Request { size: 1 << 27, align: 1 << 27, limit: 1 << 46 };
    assert_eq!(allocate(1 << 27, 16), Some(ArchPebsBufferError::NoMemory(request)));
}

/// Starts, samples once, drains and stops while one access faults, and tries again what failed. Returns the machine.
fn with_fault_at(access: usize) -> ArchMachine {
    let (machine, frames) = (ArchMachine::new(), FakeFrames::new(0x8000));
    let unit = machine.unit();
    let buffer = ArchPebsBuffer::allocate(&frames, unit.capabilities(), 0x1000, 0x10).unwrap();
    machine.msr.borrow_mut().fault_in(access);
    match unit.start(buffer, &config()) {
        Err(failed) => drop(failed),
        Ok(mut running) => {
            machine.sample(&frames, 0x1000);
            let mut sink = Taker(vec![], 9, vec![]);
            if running.drain(&mut sink).is_err() {
                running.drain(&mut sink).unwrap();
            }
            assert_eq!(sink.0, [0x1000], "access {access}");
            if let Err(failed) = running.stop() {
                failed.running.stop().unwrap();
            }
        }
    }
    assert_eq!(frames.live(), 0, "access {access}");
    machine
}

#[test]
fn each_access_that_faults_in_turn_leaves_the_buffer_with_its_owner_and_nothing_on() {
    let accesses = {
        let machine = with_fault_at(usize::MAX / 2);
        let msr = machine.msr.borrow();
        msr.reads.len() + msr.writes.len()
    };
    for access in 0..accesses {
        let machine = with_fault_at(access);
        assert_eq!(machine.get(INDEX) & EN, 0, "access {access}");
        assert_eq!(machine.get(BASE), 0, "access {access}");
        for register in [GENERAL_0 + 1, GENERAL_0 + 3, FIXED_0 + 7, 0x38d] {
            assert_eq!(machine.get(register), 0, "access {access}, register {register:#x}");
        }
        assert_eq!(machine.get(GLOBAL_CTRL), 0x3ff, "access {access}");
    }
    assert!(accesses > 50, "{accesses}");
}
