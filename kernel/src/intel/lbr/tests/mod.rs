mod architectural;

use super::branch::LbrFormat;
use super::*;
use crate::cpuid::{CpuIdReader, CpuIdResult};
use crate::fake::FakeMsr;
use crate::lifecycle::{Absent, InUse, Missing, NotBacked, NotCurrent, NotStarted, StartError};
use crate::loss::Gap;
use crate::msr::{GeneralProtection, Msr};
use std::cell::RefCell;
use std::rc::Rc;

const DEBUGCTL: u32 = 0x1d9;
const LBR_SELECT: u32 = 0x1c8;
const LBR_CTL: u32 = 0x14ce;
const LBR_DEPTH: u32 = 0x14cf;

/// A processor with the effects that the driver sees; the register addresses are copied from the manual a second time.
#[derive(Clone, Debug)]
struct LbrMachine {
    msr: Rc<RefCell<FakeMsr>>,
    row: Model,
}

#[derive(Clone, Copy, Debug)]
struct Model {
    signature: u32,
    /// CPUID.1:ECX[15], and IA32_PERF_CAPABILITIES[5:0].
    format: Option<u64>,
    depth: u32,
    /// The first registers: from, to, info; 0 if there is none.
    registers: [u32; 3],
    /// MSR_LASTBRANCH_TOS; 0: architectural.
    top: u32,
}

const fn row(signature: u32, format: Option<u64>, depth: u32, registers: [u32; 3], top: u32) -> Model {
    Model { signature, format, depth, registers, top }
}

impl Model {
    /// Returns whether the stack is read-only, as on NetBurst.
    fn is_read_only(self) -> bool {
        self.signature >> 8 == 0xf
    }

    fn has(self, address: u32) -> bool {
        self.registers.iter().any(|first| *first != 0 && (*first..first + self.depth).contains(&address))
    }
}

/// Pentium 4 (Willamette), Pentium 4 (Prescott), Pentium M, Core 2, Atom (Silvermont), Nehalem, Haswell, Skylake,
/// Sapphire Rapids.
const MODELS: [Model; 9] = [
    row(0xf12, None, 4, [0x1db, 0, 0], 0x1da),
    row(0xf41, None, 16, [0x680, 0x6c0, 0], 0x1da),
    row(0x6d8, None, 8, [0x40, 0, 0], 0x1c9),
    row(0x6f6, Some(1), 4, [0x40, 0x60, 0], 0x1c9),
    row(0x30678, Some(2), 8, [0x40, 0x60, 0], 0x1c9),
    row(0x106a5, Some(3), 16, [0x680, 0x6c0, 0], 0x1c9),
    row(0x306c3, Some(4), 16, [0x680, 0x6c0, 0], 0x1c9),
    row(0x506e3, Some(5), 32, [0x680, 0x6c0, 0xdc0], 0x1c9),
    row(0x806f4, Some(0x3f), 32, [0x1500, 0x1600, 0x1200], 0),
];
const CORE_2: Model = MODELS[3];
const NEHALEM: Model = MODELS[5];
const HASWELL: Model = MODELS[6];
const SKYLAKE: Model = MODELS[7];
const SAPPHIRE_RAPIDS: Model = MODELS[8];
const GOLDMONT: Model = row(0x506c9, Some(3), 32, [0x680, 0x6c0, 0], 0x1c9);
const ICE_LAKE: Model = Model { signature: 0x706e5, ..SKYLAKE };

// SAFETY: the registers represent no hardware.
unsafe impl Msr for LbrMachine {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        self.msr.borrow_mut().rdmsr(address)
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        if self.row.is_read_only() && self.row.has(address) {
            return Err(GeneralProtection { address, written: Some(value) });
        }
        // SAFETY: as above.
        unsafe { self.msr.borrow_mut().wrmsr(address, value) }?;
        if address == LBR_DEPTH {
            for register in self.row.registers {
                (0..self.row.depth).for_each(|n| self.set(register + n, 0));
            }
        }
        Ok(())
    }
}

impl LbrMachine {
    fn of(row: Model) -> Self {
        let machine = Self { msr: Rc::default(), row };
        machine.set(0x345, row.format.unwrap_or_default());
        // Values that an earlier owner left; none if the stack cannot be cleared.
        for n in 0..if row.is_read_only() { 0 } else { row.depth } {
            row.registers.iter().filter(|first| **first != 0).for_each(|first| machine.set(first + n, 0x77));
        }
        machine.set(row.top, u64::from(row.depth - 1));
        machine
    }

    fn cpuid(&self) -> impl CpuIdReader {
        let row = self.row;
        move |leaf, _: u32| match leaf {
            0 => CpuIdResult { eax: 0x1c, ebx: 0x756e_6547, edx: 0x4965_6e69, ecx: 0x6c65_746e },
            1 => CpuIdResult {
                eax: row.signature,
                ebx: 0,
                ecx: u32::from(row.format.is_some()) << 15,
                edx: 1 << 21,
            },
            7 => CpuIdResult { eax: 0, ebx: 1 << 25, ecx: 0, edx: u32::from(row.top == 0) << 19 },
            // 8, 16 and 32 entries; all filters; misprediction, cycles, kinds.
            0x1c => CpuIdResult { eax: 0x8000_000b, ebx: 7, ecx: 7, edx: 0 },
            _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        }
    }

    fn unit(&self) -> LbrUnit<Self> {
        LbrUnit::detect(self.cpuid(), self.clone()).unwrap()
    }

    fn start(&self, config: LbrConfig) -> LbrRunning<Self> {
        self.unit().start(&config).map_err(|failed| failed.error()).unwrap()
    }

    fn get(&self, address: u32) -> u64 {
        self.msr.borrow().get(address)
    }

    fn set(&self, address: u32, value: u64) {
        self.msr.borrow_mut().set(address, value);
    }

    fn enable(&self) -> u32 {
        if self.row.top == 0 { LBR_CTL } else { DEBUGCTL }
    }

    /// Executes branches with these numbers, whose targets are 0x1000 further on.
    fn branches(&self, from: core::ops::Range<u64>) {
        let Model { depth, registers: [first_from, first_to, _], top, .. } = self.row;
        for from in from {
            if self.get(self.enable()) & 1 == 0 {
                return;
            }
            let to = from + 0x1000;
            if top == 0 {
                for n in (1..depth).rev() {
                    self.set(first_from + n, self.get(first_from + n - 1));
                    self.set(first_to + n, self.get(first_to + n - 1));
                }
                self.set(first_from, from);
                self.set(first_to, to);
                continue;
            }
            let at = (self.get(top) as u32 + 1) % depth;
            self.set(top, u64::from(at));
            match first_to {
                0 => self.set(first_from + at, from | to << 32),
                _ => {
                    self.set(first_from + at, from);
                    self.set(first_to + at, to);
                }
            }
        }
    }
}

/// Returns the reason why the branches are not the last ones, and their targets.
fn outdated(running: &mut LbrRunning<LbrMachine>) -> (Gap, Vec<u64>) {
    match running.last(&mut [Branch::default(); 64]) {
        Err(NotCurrent::Outdated { why, before }) => (why, before.iter().map(|branch| branch.from).collect()),
        other => panic!("{other:?}"),
    }
}

fn last(running: &mut LbrRunning<LbrMachine>) -> Vec<u64> {
    let mut out = [Branch::default(); 64];
    let last = running.last(&mut out).unwrap();
    assert!(last.iter().all(|branch| branch.to == branch.from + 0x1000), "{last:x?}");
    last.iter().map(|branch| branch.from).collect()
}

#[test]
fn the_last_branches_come_newest_first_on_each_model() {
    for model in MODELS {
        let machine = LbrMachine::of(model);
        let mut running = machine.start(LbrConfig::new());
        let depth = u64::from(model.depth);
        assert_eq!(last(&mut running), [], "{model:x?}");
        machine.branches(1..4);
        assert_eq!(last(&mut running), [3, 2, 1], "{model:x?}");
        machine.branches(4..100);
        let expected: Vec<u64> = (100 - depth..100).rev().collect();
        assert_eq!(last(&mut running), expected, "{model:x?}");
        // As many as there is room for.
        let mut two = [Branch::default(); 2];
        assert_eq!(running.last(&mut two).unwrap().len(), 2);
        running.stop().map_err(|failed| failed.fault).unwrap();
        assert_eq!(machine.get(machine.enable()) & 1, 0);
        assert_eq!(machine.get(DEBUGCTL), 0);
    }
}

#[test]
fn nothing_is_recorded_while_they_are_read() {
    let machine = LbrMachine::of(NEHALEM);
    let mut running = machine.start(LbrConfig::new());
    machine.branches(1..4);
    machine.msr.borrow_mut().writes.clear();
    last(&mut running);
    assert_eq!(machine.msr.borrow().writes, [(DEBUGCTL, 0), (DEBUGCTL, 1)]);
}

#[test]
fn misprediction_and_cycles_come_from_the_information_register() {
    let machine = LbrMachine::of(SKYLAKE);
    let mut running = machine.start(LbrConfig::new());
    machine.branches(1..2);
    machine.set(0xdc0, 1 << 63 | 0x21);
    let mut out = [Branch::default(); 32];
    let branch = Branch { from: 1, to: 0x1001, mispredicted: Some(true), cycles: Some(0x21), ..out[0] };
    assert_eq!(running.last(&mut out), Ok(&[branch][..]));
}

#[test]
fn filters_are_written_as_the_processor_wants_them() {
    let all = LbrConfig::new();
    let calls = all.classes(Classes::NEAR_REL_CALL | Classes::NEAR_IND_CALL);
    // (configuration, MSR_LBR_SELECT, IA32_LBR_CTL)
    let table = [
        (all, 0, 0x7f_0007),
        (all.os(false), 0x1, 0x7f_0005),
        (all.user(false), 0x2, 0x7f_0003),
        (calls, 0x1e4, 0x18_0007),
        (all.classes(Classes::JCC), 0x1f8, 0x1_0007),
        (all.classes(Classes::NEAR_RET), 0x1dc, 0x20_0007),
        (all.classes(Classes::NEAR_IND_JMP), 0x1bc, 0x4_0007),
        (all.classes(Classes::NEAR_REL_JMP), 0x17c, 0x2_0007),
        (all.classes(Classes::OTHER), 0xfc, 0x40_0007),
        (all.call_stack(true).user(false), 0x3c6, 0x38_000b),
    ];
    for (config, select, control) in table {
        let machine = LbrMachine::of(HASWELL);
        let _running = machine.start(config);
        assert_eq!((machine.get(LBR_SELECT), machine.get(DEBUGCTL)), (select, 1), "{config:?}");
        let machine = LbrMachine::of(SAPPHIRE_RAPIDS);
        let _running = machine.start(config);
        let registers = [LBR_CTL, LBR_DEPTH, DEBUGCTL, LBR_SELECT].map(|at| machine.get(at));
        assert_eq!(registers, [control, 32, 0, 0], "{config:?}");
    }
}

#[test]
fn nehalem_and_westmere_record_jumps_with_calls_and_returns() {
    let jumps = Classes::NEAR_REL_JMP | Classes::NEAR_IND_JMP;
    let westmere = Model { signature: 0x206c2, ..NEHALEM };
    let sandy_bridge = Model { signature: 0x206a7, ..NEHALEM };
    for (classes, others) in [
        (Classes::NEAR_REL_CALL, jumps),
        (Classes::NEAR_IND_CALL, Classes::NEAR_IND_JMP),
        (Classes::NEAR_RET, jumps),
        (Classes::NEAR_IND_CALL | Classes::NEAR_RET | Classes::JCC, jumps),
        (Classes::JCC, Classes::empty()),
        (Classes::NEAR_IND_JMP, Classes::empty()),
        (Classes::OTHER, Classes::empty()),
    ] {
        for (model, others) in [
            (NEHALEM, others),
            (westmere, others),
            (sandy_bridge, Classes::empty()),
            (HASWELL, Classes::empty()),
        ] {
            let machine = LbrMachine::of(model);
            let config = LbrConfig::new().classes(classes);
            assert_eq!(config.recorded(machine.unit().capabilities()), classes | others, "{classes:?}");
            let _running = machine.start(config);
            // Bits 6 and 7 leave jumps out.
            let left_out = machine.get(LBR_SELECT) >> 6 & 0b11;
            let expected = [Classes::NEAR_IND_JMP, Classes::NEAR_REL_JMP]
                .map(|jump| u64::from(!(classes | others).contains(jump)));
            assert_eq!(left_out, expected[0] | expected[1] << 1, "{classes:?} {:#x}", model.signature);
        }
    }
}

#[test]
fn the_first_atoms_do_not_freeze_them() {
    for (signature, freezes) in
        [(0x106c0, false), (0x106c2, false), (0x106c9, false), (0x106ca, true), (0x20661, true)]
    {
        let machine = LbrMachine::of(row(signature, Some(2), 8, [0x40, 0x60, 0], 0x1c9));
        let unit = machine.unit();
        assert_eq!(unit.capabilities().freeze_on_pmi, freezes, "{signature:#x}");
        assert_eq!(unit.start(&LbrConfig::new().freeze_on_pmi(true)).is_ok(), freezes, "{signature:#x}");
    }
}

#[test]
fn branches_of_user_code_alone_have_no_address_of_the_kernel() {
    let kernel = 0xffff_ffff_8123_4567;
    let branches = [(0x40_1000, 0x40_2000), (kernel, 0x40_3000), (0x40_4000, kernel), (0x40_5000, 0x40_6000)];
    for (config, kept) in [(LbrConfig::new().os(false), 2), (LbrConfig::new(), 4)] {
        for model in [NEHALEM, SAPPHIRE_RAPIDS] {
            let machine = LbrMachine::of(model);
            let mut running = machine.start(config);
            // Entry 0 is the newest of both stacks; the next older one of the first is the last.
            for (n, (from, to)) in (0..).zip(branches) {
                let entry = if model.top == 0 { n } else { (model.depth - n) % model.depth };
                // In the first, bit 63 of a source marks a misprediction.
                machine
                    .set(model.registers[0] + entry, if model.top == 0 { from } else { from & !(1 << 63) });
                machine.set(model.registers[1] + entry, to);
            }
            machine.set(model.top, 0);
            let mut out = [Branch::default(); 2];
            let found: Vec<_> = running.last(&mut out).unwrap().iter().map(|branch| branch.from).collect();
            let expected = if kept == 2 { [0x40_1000, 0x40_5000] } else { [0x40_1000, kernel] };
            assert_eq!(found, expected, "{config:?}");
            // The same holds after the stop.
            let mut unit = running.stop().map_err(|failed| failed.fault).unwrap();
            assert_eq!(unit.last(&mut [Branch::default(); 8]).unwrap().len(), kept, "{config:?}");
        }
    }
}

#[test]
fn refuses_what_the_processor_does_not_do() {
    let all = LbrConfig::new();
    let table = [
        (CORE_2, all.os(false), LbrRefusal::Levels),
        (CORE_2, all.classes(Classes::JCC), LbrRefusal::Classes),
        (CORE_2, all.os(false).user(false), LbrRefusal::NoLevel),
        (NEHALEM, all.call_stack(true), LbrRefusal::CallStack),
        (HASWELL, all.call_stack(true).classes(Classes::NEAR_RET), LbrRefusal::CallStackHasClasses),
        (HASWELL, all.call_stack(true).freeze_on_pmi(true), LbrRefusal::CallStackFreezes),
        (MODELS[1], all.freeze_on_pmi(true), LbrRefusal::Freeze),
    ];
    for (model, config, refusal) in table {
        let machine = LbrMachine::of(model);
        let unit = machine.unit();
        machine.msr.borrow_mut().writes.clear();
        let error = unit.start(&config).err().unwrap().error();
        assert_eq!(error, StartError::Refused(refusal));
        assert_eq!(machine.msr.borrow().writes, []);
    }
}

#[test]
fn start_refuses_where_somebody_records_branches() {
    // (model, register, value, excluded)
    let table = [
        (NEHALEM, DEBUGCTL, 0x1, true),
        (NEHALEM, DEBUGCTL, 0x40, true),
        (NEHALEM, DEBUGCTL, 0x80, true),
        // On NetBurst, TR is at another place.
        (MODELS[1], DEBUGCTL, 0x4, true),
        (MODELS[1], DEBUGCTL, 0x40, false),
        (SAPPHIRE_RAPIDS, LBR_CTL, 0x1, true),
        (SKYLAKE, 0x570, 0x2005, true),
        // They can be used together with PT.
        (GOLDMONT, 0x570, 0x2005, false),
        (ICE_LAKE, 0x570, 0x2005, false),
        (SAPPHIRE_RAPIDS, 0x570, 0x2005, false),
    ];
    for (model, register, value, excluded) in table {
        let machine = LbrMachine::of(model);
        let unit = machine.unit();
        machine.set(register, value);
        machine.msr.borrow_mut().writes.clear();
        match unit.start(&LbrConfig::new()) {
            Ok(_) => assert!(!excluded, "{model:x?} {value:#x}"),
            Err(failed) => {
                let error = failed.error();
                assert!(excluded, "{error}");
                let processor_trace = matches!(error, StartError::InUse(InUse::ProcessorTrace { .. }));
                assert_eq!(processor_trace, register == 0x570);
                assert_eq!(machine.msr.borrow().writes, []);
            }
        }
    }
}

#[test]
fn a_pmi_freezes_them_where_asked_for_and_reading_lets_them_go_on() {
    let machine = LbrMachine::of(NEHALEM);
    machine.set(DEBUGCTL, 0x2);
    let mut running = machine.start(LbrConfig::new().freeze_on_pmi(true));
    assert_eq!(machine.get(DEBUGCTL), 0x803);
    machine.branches(1..4);
    // The effect of a PMI on the records.
    machine.set(DEBUGCTL, 0x802);
    machine.branches(4..9);
    assert_eq!(last(&mut running), [3, 2, 1]);
    machine.branches(9..10);
    assert_eq!(last(&mut running), [9, 3, 2, 1]);
    drop(running);
    assert_eq!(machine.get(DEBUGCTL), 0x2);

    let machine = LbrMachine::of(SAPPHIRE_RAPIDS);
    let running = machine.start(LbrConfig::new().freeze_on_pmi(true));
    assert_eq!(machine.get(DEBUGCTL), 0x800);
    drop(running);
    assert_eq!((machine.get(DEBUGCTL), machine.get(LBR_CTL) & 1), (0, 0));
}

#[test]
fn what_was_recorded_is_there_when_they_are_off() {
    for model in MODELS {
        let machine = LbrMachine::of(model);
        let running = machine.start(LbrConfig::new());
        machine.branches(1..4);
        let mut unit = running.stop().map_err(|failed| failed.fault).unwrap();
        machine.msr.borrow_mut().writes.clear();
        let mut out = [Branch::default(); 32];
        let found: Vec<_> = unit.last(&mut out).unwrap().iter().map(|branch| branch.from).collect();
        assert_eq!(found, [3, 2, 1], "{:#x}", model.signature);
        assert_eq!(machine.msr.borrow().writes, []);
    }
}

#[test]
fn without_tsx_its_bits_say_nothing() {
    // Bits of CPUID.7:EBX: HLE and RTM.
    for (ebx, format) in
        [(0, LbrFormat::EipFlags), (1 << 4, LbrFormat::EipFlagsTsx), (1 << 11, LbrFormat::EipFlagsTsx)]
    {
        let machine = LbrMachine::of(HASWELL);
        let cpuid = machine.cpuid();
        let with = move |leaf, subleaf| {
            let below = cpuid.cpuid2(leaf, subleaf);
            CpuIdResult { ebx: below.ebx | if leaf == 7 { ebx } else { 0 }, ..below }
        };
        let unit = LbrUnit::detect(with, machine.clone()).unwrap();
        assert_eq!(unit.capabilities().format, format, "{ebx:#x}");
    }
}

#[test]
fn a_stopped_unit_says_that_its_branches_are_not_the_last_ones() {
    for turned_off in [false, true] {
        let machine = LbrMachine::of(SKYLAKE);
        let running = machine.start(LbrConfig::new());
        machine.branches(1..3);
        if turned_off {
            machine.set(DEBUGCTL, 0);
        }
        let mut unit = running.stop().map_err(|failed| failed.fault).unwrap();
        let mut out = [Branch::default(); 32];
        match unit.last(&mut out) {
            Ok(last) => assert_eq!((last.len(), turned_off), (2, false)),
            Err(NotCurrent::Outdated { why: Gap::TurnedOff, before }) => {
                assert_eq!((before.len(), turned_off), (2, true));
            }
            Err(error) => panic!("{error}"),
        }
        // The next start empties the stack.
        let running = unit.start(&LbrConfig::new()).map_err(|failed| failed.error()).unwrap();
        let mut unit = running.stop().map_err(|failed| failed.fault).unwrap();
        assert_eq!(unit.last(&mut out), Ok(&[][..]));
    }
}

#[test]
fn they_do_not_go_on_beside_a_recorder_that_came_while_a_pmi_had_frozen_them() {
    // (register, value)
    for (register, value) in [(0x570, 0x2005), (DEBUGCTL, 0x8c0)] {
        let machine = LbrMachine::of(SKYLAKE);
        let mut running = machine.start(LbrConfig::new().freeze_on_pmi(true));
        machine.branches(1..4);
        // The effect of a PMI, then of another owner.
        machine.set(DEBUGCTL, 0x800);
        machine.set(register, value);
        assert_eq!(last(&mut running), [3, 2, 1]);
        assert_eq!((running.is_excluded(), machine.get(DEBUGCTL) & 1), (true, 0));
        assert_eq!(outdated(&mut running), (Gap::Excluded, vec![3, 2, 1]));
        assert!(running.is_excluded());
        machine.set(register, if register == DEBUGCTL { 0x800 } else { 0 });
        assert_eq!(outdated(&mut running), (Gap::Excluded, vec![3, 2, 1]));
        assert_eq!((running.is_excluded(), machine.get(DEBUGCTL)), (false, 0x801));
        machine.branches(4..5);
        assert_eq!(last(&mut running), [4]);
    }
    // The architectural records can be used together with PT.
    let machine = LbrMachine::of(SAPPHIRE_RAPIDS);
    let mut running = machine.start(LbrConfig::new().freeze_on_pmi(true));
    machine.set(0x570, 0x2005);
    last(&mut running);
    assert_eq!((running.is_excluded(), machine.get(LBR_CTL) & 1), (false, 1));
}

#[test]
fn detection_says_what_is_missing() {
    let machine = LbrMachine::of(NEHALEM);
    machine.msr.borrow_mut().dead = true;
    let error = LbrUnit::detect(machine.cpuid(), machine.clone()).err().unwrap();
    assert_eq!(error, NotBacked { address: DEBUGCTL, written: 1, read: 0 }.into());

    let unknown = row(0x6c6_0f0, Some(5), 32, [0x680, 0x6c0, 0xdc0], 0x1c9);
    let machine = LbrMachine::of(unknown);
    assert!(matches!(
        LbrUnit::detect(machine.cpuid(), machine.clone()),
        Err(Absent::Missing(Missing::LastBranchModel { .. }))
    ));

    let machine = LbrMachine::of(Model { format: Some(9), ..SKYLAKE });
    let error = LbrUnit::detect(machine.cpuid(), machine.clone()).err().unwrap();
    assert_eq!(error, Missing::LastBranchFormat { number: 9 }.into());

    let amd = |leaf, _: u32| match leaf {
        0 => CpuIdResult { eax: 0x10, ebx: 0x6874_7541, edx: 0x6974_6e65, ecx: 0x444d_4163 },
        _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
    };
    assert_eq!(LbrUnit::detect(amd, machine).err(), Some(Missing::Intel.into()));
}

#[test]
fn detection_turns_nothing_on_beside_another_recorder() {
    // (processor, register, value)
    let table = [
        (SKYLAKE, 0x570, 0x2005),
        (SKYLAKE, DEBUGCTL, 0xc0),
        (SKYLAKE, DEBUGCTL, 0x40),
        (SAPPHIRE_RAPIDS, DEBUGCTL, 0xc0),
    ];
    for (row, register, value) in table {
        let machine = LbrMachine::of(row);
        machine.set(register, value);
        machine.msr.borrow_mut().writes.clear();
        let unit = machine.unit();
        assert_eq!(machine.msr.borrow().writes, [], "{register:#x} {value:#x}");
        assert!(unit.start(&LbrConfig::new()).is_err());
    }
}

/// The number of models that have faults: in Miri, which takes a thousand times as long, not all.
const WITH_FAULTS: usize = if cfg!(miri) { 1 } else { MODELS.len() };

#[test]
fn a_fault_at_any_access_leaves_them_off_and_the_unit_at_hand() {
    for model in MODELS.into_iter().take(WITH_FAULTS) {
        for nth in 0.. {
            let machine = LbrMachine::of(model);
            let unit = machine.unit();
            machine.msr.borrow_mut().fault_in(nth);
            let config = LbrConfig::new();
            let Err(failed) = unit.start(&config) else {
                assert!(nth > 2, "{nth} accesses");
                break;
            };
            let NotStarted::Off { unit, error, .. } = failed else { panic!("{failed}") };
            assert!(matches!(error, StartError::Fault(_)), "{error}");
            assert_eq!(machine.get(machine.enable()) & 1, 0, "access {nth}");
            let mut running = unit.start(&config).map_err(|failed| failed.error()).unwrap();
            machine.branches(1..3);
            assert_eq!(last(&mut running), [2, 1]);
        }
    }
}

#[test]
fn a_fault_while_reading_or_stopping_can_be_tried_again() {
    for nth in 0.. {
        let machine = LbrMachine::of(NEHALEM);
        let mut running = machine.start(LbrConfig::new());
        machine.branches(1..3);
        machine.msr.borrow_mut().fault_in(nth);
        if running.last(&mut [Branch::default(); 16]).is_ok() {
            assert!(nth > 10, "{nth} accesses");
            break;
        }
        let was_off = machine.get(DEBUGCTL) == 0;
        let found = match was_off {
            true => outdated(&mut running),
            false => (Gap::Abandoned, last(&mut running)),
        };
        assert_eq!(found, (Gap::Abandoned, vec![2, 1]), "access {nth}");
        machine.branches(3..4);
        let newest = if was_off { vec![3] } else { vec![3, 2, 1] };
        assert_eq!((machine.get(DEBUGCTL), last(&mut running)), (1, newest), "access {nth}");
    }
    for nth in 0..4 {
        let machine = LbrMachine::of(NEHALEM);
        let running = machine.start(LbrConfig::new());
        machine.msr.borrow_mut().fault_in(nth);
        let failed = running.stop().err().unwrap();
        failed.running.stop().map_err(|failed| failed.fault).unwrap();
        assert_eq!(machine.get(DEBUGCTL), 0);
    }
}
