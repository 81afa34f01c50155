//! A kernel of asynchronous tasks, which interrupts wake: it traces while its executor runs them, and prints how many
//! instructions and calls are each task's, the executor's and those of interrupts, by the short way.
#![no_std]
#![no_main]

mod executor;
mod tasks;

use core::ops::Range;
use machine::frames::SingleFrames;
use machine::symbols::{Function, function_range};
use machine::{PHYSICAL_MEMORY_OFFSET, println};
use pugmark_decoder_core::block_cache::{ExecutionSink, InstructionRun};
use pugmark_decoder_core::calls::{Calls, Step, StepKind};
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::flow::FlowItem;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::Section;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::lapic::{Delivery, XApic};
use pugmark_kernel::pmi::Pmi;
use pugmark_kernel::short::{FramePool, Live, ShortError, kernel_code};

machine::main!(main);

fn main() {
    println!("run async");
    machine::traps::on_nmi(nmi);
    match trace() {
        Ok(()) => println!("ok async\ndone 1 0"),
        Err(error) => panic!("{error}"),
    }
}

fn processor() -> (GuardedMsr, XApic) {
    // SAFETY: CPL 0; the #GP handler in `machine::traps` obeys `fixup`; no thread of this kernel moves.
    let msr = unsafe { GuardedMsr::new() };
    // SAFETY: the local APIC's page is mapped there; the firmware's MTRRs make it uncached.
    (msr, unsafe { XApic::at_offset(PHYSICAL_MEMORY_OFFSET) })
}

// SAFETY: this kernel has one processor.
static LIVE: Live<GuardedMsr, XApic, ByTask> = unsafe { Live::new(Delivery::Nmi, processor) };

/// Handles NMIs.
fn nmi(rip: u64) {
    let pmi = LIVE.interrupt(rip).expect("the registers are there");
    assert!(pmi != Pmi::NotOurs, "nobody else sends NMIs");
}

/// Polls, instructions and calls of one task, of the executor or of interrupts.
#[derive(Clone, Copy, Default)]
struct Row {
    task: u64,
    polls: u64,
    instructions: u64,
    calls: u64,
}

/// Counts instructions and calls by task.
struct ByTask {
    code: [Section<'static>; 1],
    /// The executor's function that polls a task.
    poll: Range<u64>,
    all: AddressHash,
    calls: Calls,
    interrupts: usize,
    now: usize,
    rows: [Row; 8],
}

/// The rows that are no task's.
const EXECUTOR: usize = 0;
const INTERRUPTS: usize = 1;

impl ByTask {
    fn row(&mut self) -> &mut Row {
        &mut self.rows[if self.interrupts > 0 { INTERRUPTS } else { self.now }]
    }

    fn step(&mut self, Step { kind, from, to, .. }: Step) {
        match kind {
            StepKind::Call if self.poll.contains(&from) => {
                let mut tasks = self.rows.iter().skip(INTERRUPTS + 1);
                self.now = INTERRUPTS + 1 + tasks.position(|row| [0, to].contains(&row.task)).expect("a row");
                self.rows[self.now].task = to;
                self.rows[self.now].polls += 1;
            }
            StepKind::Call => self.row().calls += 1,
            StepKind::Return if self.poll.contains(&to) => self.now = EXECUTOR,
            StepKind::Interrupt => self.interrupts += 1,
            StepKind::InterruptReturn => self.interrupts -= 1,
            _ => {}
        }
    }
}

impl ExecutionSink for ByTask {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        if let Some(step) = self.calls.run(insns, &self.code) {
            self.step(step);
        }
        insns.for_each(|ip| self.all.add(ip));
        self.row().instructions += insns.count() as u64;
    }
    fn event(&mut self, event: &Event) {
        if let Some(step) = self.calls.step(&FlowItem::Event(*event)) {
            self.step(step);
        }
    }
}

fn trace() -> Result<(), ShortError> {
    // SAFETY: all RAM is mapped there, write-back.
    let memory = unsafe { FramePool::new(&mut SingleFrames, PHYSICAL_MEMORY_OFFSET, 8 << 10) };
    // SAFETY: the linker puts the kernel's code between these symbols; nothing writes to it.
    let code = [unsafe { kernel_code(&raw const machine::__text_start, &raw const machine::__text_end) }];
    let poll = function_range(executor::poll as *const () as u64).expect("its symbol");
    let (all, calls, rows) = (AddressHash::new(), Calls::new(), [Row::default(); 8]);
    machine::mark_truth(1);
    let sink = ByTask { code, poll, all, calls, interrupts: 0, now: EXECUTOR, rows };
    LIVE.start(memory, code, &PtConfig::new().os(true), sink)?;
    tasks::run();
    let ended = LIVE.stop()?;
    machine::mark_truth(0);
    assert!(ended.is_whole(), "{}, {} errors", ended.loss, ended.errors);
    println!("results {:?}", tasks::RESULTS);
    let served = LIVE.slot().handler(|handler| handler.counts().served)?;
    println!("pmis={served}\ninstructions={} hash={:#x}", ended.sink.all.count(), ended.sink.all.value());
    for (number, row) in ended.sink.rows.iter().enumerate().filter(|(_, row)| row.instructions > 0) {
        let Row { task, polls, instructions, calls } = *row;
        let of = ["executor", "interrupts", "task"][number.min(2)];
        println!("{of} {} polls={polls} instructions={instructions} calls={calls}", Function(task));
    }
    Ok(())
}
