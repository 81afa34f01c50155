//! Feeds an execution to a processor of the model, whose output goes to simulated memory.

use super::{TraceConfig, TraceOutput};
use crate::{Execution, ExecutionStep, Program, TracingSwitch};
use pugmark_decoder_core::packet::PtwPayload;
use pugmark_model::intel::IntelProcessor;
use pugmark_model::{Context, FlatMemory, Processor as _, Retired};

/// Numbers of MSRs, typed from the manual: SDM vol. 4.
mod msr {
    pub(super) const OUTPUT_BASE: u32 = 0x560;
    pub(super) const OUTPUT_MASK_PTRS: u32 = 0x561;
    pub(super) const CTL: u32 = 0x570;
    pub(super) const STATUS: u32 = 0x571;
    pub(super) const CR3_MATCH: u32 = 0x572;
    pub(super) const ADDR0_A: u32 = 0x580;
    pub(super) const GLOBAL_STATUS: u32 = 0x38e;
    pub(super) const GLOBAL_STATUS_RESET: u32 = 0x390;
}

/// IA32_RTIT_STATUS.Error.
const ERROR: u64 = 1 << 4;
/// IA32_RTIT_STATUS.Stopped.
const STOPPED: u64 = 1 << 5;
/// IA32_PERF_GLOBAL_STATUS.Trace_ToPA_PMI.
const TOPA_PMI: u64 = 1 << 55;
/// LVT entry: delivery mode NMI.
const LVT_NMI: u32 = 4 << 8;
/// Bits of an entry of the ToPA, Intel PT's table of output regions.
const END: u64 = 1;
const INT: u64 = 1 << 2;
const STOP: u64 = 1 << 4;
const SIZE_SHIFT: u64 = 6;

/// Start of physical memory: the ToPA table is its first page, the output buffer its second half.
const RAM: u64 = 0x1000_0000;
const BUFFER: u64 = RAM + BUFFER_SIZE;
const BUFFER_SIZE: u64 = 512 << 10;
/// The size field of a ToPA entry: 4 KiB << 7.
const BUFFER_ORDER: u64 = 7;
const PAGE: u64 = 4096;

/// The result of a run.
#[derive(Debug, Default)]
pub struct TraceRun {
    /// All packets, in order.
    pub trace: Vec<u8>,
    /// The address of each instruction that had to be traced, in order.
    pub truth: Vec<u64>,
    /// For each of these instructions, the TSC at its retirement.
    pub times: Vec<u64>,
    /// The operands of the PTWRITEs that had to be traced.
    pub ptwrites: Vec<PtwPayload>,
    /// The vectors of the events delivered while tracing was on, with the addresses of page faults.
    pub events: Vec<(u8, Option<u64>)>,
    /// The output wrapped around and overwrote its oldest bytes.
    pub wrapped: bool,
    /// PMIs that were handled.
    pub pmis: usize,
    /// Number of times that IA32_RTIT_STATUS.Stopped was found set.
    pub stops: usize,
}

/// Walks `program` and traces it.
///
/// # Panics If the model refuses a configuration that it should accept; a test must fail then.
#[must_use]
pub fn run(program: &Program, config: &TraceConfig, seed: u64) -> TraceRun {
    let mut ram = vec![0; 2 * BUFFER_SIZE as usize];
    let memory = FlatMemory { base: RAM, bytes: &mut ram };
    let processor = IntelProcessor::new(config.profile, config.settings);
    let run = TraceRun::default();
    let mut machine = Machine { processor, memory, config, run, on: false, stopped: false };
    let mut execution = Execution::new(program, seed, config.rates);
    let mut left = config.steps;
    loop {
        let step = execution.next().expect("an execution never ends");
        machine.step(&step);
        left = left.saturating_sub(1);
        if machine.processor.take_interrupt().is_some() {
            machine.run.pmis += 1;
            execution.request_nmi();
        }
        if left == 0 && matches!(step, ExecutionStep::Switch(TracingSwitch::Off, _)) {
            return machine.run;
        }
        if left == 0 {
            execution.request_nmi();
        }
    }
}

struct Machine<'a> {
    processor: IntelProcessor,
    memory: FlatMemory<'a>,
    config: &'a TraceConfig,
    run: TraceRun,
    on: bool,
    /// TraceStop ended the trace; tracing resumes only when TraceEn is set again.
    stopped: bool,
}

impl Machine<'_> {
    fn step(&mut self, step: &ExecutionStep) {
        match step {
            ExecutionStep::Switch(TracingSwitch::On, retired) => self.start(retired),
            ExecutionStep::Switch(TracingSwitch::Off, retired) => self.stop(retired),
            ExecutionStep::Retired(retired) => {
                if self.on && !self.stopped && self.config.filter.traces(&retired.before) {
                    self.run.truth.push(retired.before.ip);
                    self.run.times.push(retired.tsc);
                    self.run.ptwrites.extend(ptwrite(retired));
                }
                self.take_pmi(&retired.after);
                if self.processor.needs_each_instruction() {
                    self.processor.retire(retired, &mut self.memory);
                }
            }
            ExecutionStep::Delivered(delivery) => {
                if self.on && !self.stopped {
                    self.run.events.push((delivery.vector, delivery.cr2));
                }
                self.take_pmi(&delivery.after);
                if self.processor.needs_each_instruction() {
                    self.processor.deliver(delivery, &mut self.memory);
                }
            }
        }
    }

    fn take_pmi(&mut self, at: &Context) {
        self.stopped |= self.on && self.config.filter.stops(at);
    }

    fn write(&mut self, number: u32, value: u64, at: &Retired) {
        let written = self.processor.write_msr(number, value, at, &mut self.memory);
        assert!(written.is_ok(), "WRMSR {number:#x}, {value:#x}");
    }

    fn read(&mut self, number: u32) -> u64 {
        self.processor.read_msr(number).expect("RDMSR")
    }

    fn start(&mut self, at: &Retired) {
        assert!(!self.on, "turned on twice");
        let config = self.config;
        if self.run.trace.is_empty() || config.clears_status {
            self.write(msr::STATUS, 0, at);
        } else {
            let status = self.read(msr::STATUS);
            self.write(msr::STATUS, status & !(ERROR | STOPPED), at);
        }
        match config.output {
            TraceOutput::Range => {
                self.write(msr::OUTPUT_BASE, BUFFER, at);
                self.write(msr::OUTPUT_MASK_PTRS, BUFFER_SIZE - 1, at);
            }
            TraceOutput::Region => self.topa(&[BUFFER | BUFFER_ORDER << SIZE_SHIFT | STOP], at),
            TraceOutput::Regions { count, pmi } => {
                let mut entries = pages(count);
                entries[pmi] |= INT;
                entries[count - 1] |= STOP;
                self.topa(&entries, at);
            }
            TraceOutput::Full { count } => {
                let mut entries = pages(count);
                entries[count - 1] |= STOP;
                self.topa(&entries, at);
            }
            TraceOutput::Ring { count } => self.topa(&pages(count), at),
        }
        if let Some(cr3) = config.filter.cr3 {
            self.write(msr::CR3_MATCH, cr3, at);
        }
        for (index, (range, _)) in config.ranges().enumerate() {
            self.write(msr::ADDR0_A + 2 * index as u32, *range.start(), at);
            self.write(msr::ADDR0_A + 2 * index as u32 + 1, *range.end(), at);
        }
        self.processor.write_apic(0x340, LVT_NMI);
        self.write(msr::CTL, config.ctl(), at);
        assert_eq!(self.read(msr::STATUS) & ERROR, 0, "operational error");
        self.on = true;
        self.stopped = config.filter.stops(&at.after);
    }

    /// Writes a ToPA table with these regions; its last entry links back to the table.
    fn topa(&mut self, regions: &[u64], at: &Retired) {
        for (index, entry) in regions.iter().chain([&(RAM | END)]).enumerate() {
            self.memory.bytes[8 * index..8 * index + 8].copy_from_slice(&entry.to_le_bytes());
        }
        self.write(msr::OUTPUT_BASE, RAM, at);
        self.write(msr::OUTPUT_MASK_PTRS, 0, at);
    }

    fn stop(&mut self, at: &Retired) {
        assert!(self.on, "turned off twice");
        self.write(msr::CTL, 0, at);
        let status = self.read(msr::STATUS);
        assert_eq!(status & ERROR, 0, "operational error");
        self.run.stops += usize::from(status & STOPPED != 0);
        if self.read(msr::GLOBAL_STATUS) & TOPA_PMI != 0 {
            self.write(msr::GLOBAL_STATUS_RESET, TOPA_PMI, at);
        }
        let pointers = self.read(msr::OUTPUT_MASK_PTRS);
        let offset = pointers >> 32;
        let valid = match self.config.output {
            TraceOutput::Range | TraceOutput::Region => offset,
            _ => (pointers >> 7 & 0x1ff_ffff) * PAGE + offset,
        };
        let buffer = &self.memory.bytes[(BUFFER - RAM) as usize..];
        let (newest, oldest) = buffer.split_at(valid as usize);
        if let TraceOutput::Ring { count } = self.config.output {
            // Memory that was never written is zero, and zero bytes decode as PAD packets.
            let oldest = &oldest[..count * PAGE as usize - newest.len()];
            self.run.wrapped = oldest.iter().any(|&byte| byte != 0);
            self.run.trace.extend(oldest.iter().filter(|_| self.run.wrapped));
        }
        self.run.trace.extend(newest);
        self.on = false;
    }
}

/// Makes ToPA entries for `count` regions of 4 KiB.
fn pages(count: usize) -> Vec<u64> {
    (0..count as u64).map(|index| BUFFER + index * PAGE).collect()
}

/// Returns the operand if the instruction is a PTWRITE in one of the forms that programs contain.
fn ptwrite(retired: &Retired) -> Option<PtwPayload> {
    match retired.bytes {
        [0xf3, 0x48, 0x0f, 0xae, ..] => Some(PtwPayload::Eight(retired.operand)),
        [0xf3, 0x0f, 0xae, ..] => Some(PtwPayload::Four(retired.operand as u32)),
        _ => None,
    }
}
