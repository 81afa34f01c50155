//! Traces one stream of instructions both with Intel PT and with branch records (BTS): both must report the same
//! branches.
//!
//! The branches of the Intel PT trace are derived from the instructions that the decoder finds in it. `PUGMARK_LONG=1`
//! runs fifty times as many programs.

use pugmark_decoder_core::bts::{BranchRecords, Entry, Layout};
use pugmark_decoder_core::event::EventKind;
use pugmark_decoder_core::flow::{ExecutedInsn, FlowItem, InsnDecoder};
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::insn::Class;
use pugmark_generator::{EventRates, Execution, ExecutionStep, Program, ProgramShape, TracingSwitch};
use pugmark_model::intel::{IntelProcessor, IntelProfile, IntelSettings};
use pugmark_model::{DeliveryKind, FlatMemory, Processor as _, Retired};

const DEBUGCTL: u32 = 0x1d9;
const OUTPUT_BASE: u32 = 0x560;
const OUTPUT_MASK_PTRS: u32 = 0x561;
const CTL: u32 = 0x570;
const DS_AREA: u32 = 0x600;

/// TraceEn, OS, User, BranchEn.
const TRACE: u64 = 1 | 1 << 2 | 1 << 3 | 1 << 13;
/// TR, BTS.
const RECORD: u64 = 1 << 6 | 1 << 7;

const PACKETS: usize = 0x10_0000;
const PACKETS_BYTES: usize = 0x10_0000;
const AREA: usize = 0x20_0000;
const RECORDS: usize = 0x20_1000;
const RECORDS_BYTES: usize = 24 * 0x8000;

type Branch = (u64, u64);

/// Both traces, and the data that packets lack: the kind of each delivery, and the address of each WRMSR that started a
/// trace.
#[derive(Default)]
struct Traces {
    packets: Vec<u8>,
    records: Vec<u8>,
    deliveries: Vec<DeliveryKind>,
    starts: Vec<u64>,
}

struct Machine {
    processor: IntelProcessor,
    ram: Vec<u8>,
}

impl Machine {
    fn new(settings: IntelSettings) -> Self {
        let profile = IntelProfile::by_name("skylake").expect("a profile with both");
        Self { processor: IntelProcessor::new(profile, settings), ram: vec![0; RECORDS + RECORDS_BYTES] }
    }

    fn write(&mut self, number: u32, value: u64, at: &Retired) {
        let memory = &mut FlatMemory { base: 0, bytes: &mut self.ram };
        let written = self.processor.write_msr(number, value, at, memory);
        assert!(written.is_ok(), "WRMSR {number:#x}, {value:#x}");
    }

    fn start(&mut self, at: &Retired) {
        let end = (RECORDS + RECORDS_BYTES) as u64;
        // With the threshold beyond the buffer's end, the buffer is circular and never interrupts.
        for (index, field) in [RECORDS as u64, RECORDS as u64, end, end + 24].into_iter().enumerate() {
            self.ram[AREA + 8 * index..][..8].copy_from_slice(&field.to_le_bytes());
        }
        self.write(OUTPUT_BASE, PACKETS as u64, at);
        self.write(OUTPUT_MASK_PTRS, PACKETS_BYTES as u64 - 1, at);
        self.write(DS_AREA, AREA as u64, at);
        self.write(DEBUGCTL, RECORD, at);
        self.write(CTL, TRACE, at);
    }

    fn stop(&mut self, at: &Retired, traces: &mut Traces) {
        self.write(CTL, 0, at);
        self.write(DEBUGCTL, 0, at);
        let pointers = self.processor.read_msr(OUTPUT_MASK_PTRS).expect("RDMSR");
        traces.packets.extend(&self.ram[PACKETS..][..(pointers >> 32) as usize]);
        let index = u64::from_le_bytes(self.ram[AREA + 8..][..8].try_into().expect("eight bytes"));
        traces.records.extend(&self.ram[RECORDS..index as usize]);
    }
}

fn trace(program: &Program, seed: u64, settings: IntelSettings, steps: usize) -> Traces {
    let mut machine = Machine::new(settings);
    let mut traces = Traces::default();
    let mut execution = Execution::new(program, seed, EventRates::default());
    let mut left = steps;
    loop {
        match execution.next().expect("an execution never ends") {
            ExecutionStep::Switch(TracingSwitch::On, at) => {
                machine.start(&at);
                traces.starts.push(at.before.ip);
            }
            ExecutionStep::Switch(TracingSwitch::Off, at) => {
                machine.stop(&at, &mut traces);
                if left == 0 {
                    return traces;
                }
            }
            ExecutionStep::Retired(retired) if machine.processor.needs_each_instruction() => {
                let memory = &mut FlatMemory { base: 0, bytes: &mut machine.ram };
                machine.processor.retire(&retired, memory);
            }
            ExecutionStep::Delivered(delivery) if machine.processor.needs_each_instruction() => {
                traces.deliveries.push(delivery.kind);
                let memory = &mut FlatMemory { base: 0, bytes: &mut machine.ram };
                machine.processor.deliver(&delivery, memory);
            }
            ExecutionStep::Retired(_) | ExecutionStep::Delivered(_) => {}
        }
        left = left.saturating_sub(1);
        if left == 0 {
            // The handler of the NMI turns tracing off.
            execution.request_nmi();
        }
    }
}

/// The branches that the decoder finds in the packets.
struct Branches<'a> {
    found: Vec<Branch>,
    deliveries: std::slice::Iter<'a, DeliveryKind>,
    starts: std::slice::Iter<'a, u64>,
    /// The previous instruction, a possible branch.
    before: Option<ExecutedInsn>,
    /// The last instruction that completed, even if an event followed it.
    completed: u64,
}

impl Branches<'_> {
    /// Reports a branch if `ip` is not the sequential successor of the previous instruction.
    fn at(&mut self, ip: u64) {
        let Some(before) = self.before.take() else { return };
        let goes_on = !before.class.is_branch() || before.class == Class::CondJump;
        if !goes_on || ip != before.ip + u64::from(before.len) {
            self.found.push((before.ip, ip));
        }
    }

    fn item(&mut self, item: FlowItem) {
        match item {
            FlowItem::Insn(insn) => {
                self.at(insn.ip);
                self.completed = insn.ip;
                self.before = Some(insn);
            }
            FlowItem::Event(event) => match (event.kind, event.ip) {
                (EventKind::AsyncBranch { from }, Some(to)) => {
                    self.at(from);
                    let kind = self.deliveries.next();
                    let trap = kind == Some(&DeliveryKind::Trap);
                    self.found.push((if trap { self.completed } else { from }, to));
                    if kind == Some(&DeliveryKind::SoftwareInterrupt) {
                        self.completed = from;
                    }
                }
                (EventKind::AsyncDisabled { at }, _) => self.at(at),
                (EventKind::Disabled, _) => panic!("WRMSR disables with its own address"),
                (EventKind::Enabled { .. }, _) => self.completed = *self.starts.next().expect("a start"),
                _ => {}
            },
        }
    }
}

fn of_packets(traces: &Traces, program: &Program) -> Vec<Branch> {
    let sections: Vec<_> = program
        .sections()
        .iter()
        .map(|section| Section { base: section.base, bytes: &section.bytes, space: AddressSpace::Any })
        .collect();
    let (deliveries, starts) = (traces.deliveries.iter(), traces.starts.iter());
    let mut branches = Branches { found: Vec::new(), deliveries, starts, before: None, completed: 0 };
    let mut decoder = InsnDecoder::new(&traces.packets, Image::new(&sections));
    decoder.sync_forward();
    while let Some(item) = decoder.next().unwrap_or_else(|error| panic!("{error}")) {
        branches.item(item);
    }
    assert_eq!(branches.deliveries.len(), 0, "each delivery is in the trace");
    branches.found
}

fn of_records(traces: &Traces) -> Vec<Branch> {
    BranchRecords::new(&traces.records, Layout::Bits64)
        .map(|item| match item.expect("a record") {
            (_, Entry::Branch(record)) => (record.from, record.to),
            (_, Entry::Lost { .. }) => panic!("nothing is lost"),
        })
        .collect()
}

#[test]
fn packets_and_records_tell_of_the_same_branches() {
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let mut deliveries = Vec::new();
    for seed in 0..if long { 2000 } else { 40 } {
        let program = Program::generate(seed, &ProgramShape::default());
        // The leading PSB lets the decoder see the start.
        let settings = IntelSettings {
            long_tnt: seed % 2 == 0,
            deferred_tips: seed % 3 == 0,
            psb_before_pge: true,
            ..IntelSettings::default()
        };
        let traces = trace(&program, seed, settings, 3000);
        let (packets, records) = (of_packets(&traces, &program), of_records(&traces));
        let same = packets.iter().zip(&records).take_while(|(a, b)| a == b).count();
        assert_eq!(
            (packets.len(), packets.get(same)),
            (records.len(), records.get(same)),
            "{seed}: the first {same} agree"
        );
        assert!(records.len() > 100, "{seed}");
        deliveries.extend(traces.deliveries);
    }
    use DeliveryKind::*;
    for kind in [Interrupt, Nmi, Fault, Trap, SoftwareInterrupt] {
        assert!(deliveries.contains(&kind), "{kind:?}");
    }
}
