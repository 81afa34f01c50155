//! A kernel that decodes its own trace while it is recorded, in NMIs, and loses nothing: it counts the instructions
//! that it executes, and the calls, by the short way.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use machine::frames::SingleFrames;
use machine::{PHYSICAL_MEMORY_OFFSET, println};
use pugmark_decoder_core::block_cache::{ExecutionSink, InstructionRun};
use pugmark_decoder_core::calls::{CallSink, Step, StepKind};
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::lapic::{Delivery, XApic};
use pugmark_kernel::pmi::Pmi;
use pugmark_kernel::short::{FramePool, Live, ShortError, kernel_code};

machine::main!(main);

fn main() {
    println!("run live");
    machine::traps::on_nmi(nmi);
    match trace() {
        Ok(()) => println!("ok live\ndone 1 0"),
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
static LIVE: Live<GuardedMsr, XApic, Counts> = unsafe { Live::new(Delivery::Nmi, processor) };

/// Handles NMIs.
fn nmi(rip: u64) {
    let pmi = LIVE.interrupt(rip).expect("the registers are there");
    assert!(pmi != Pmi::NotOurs, "nobody else sends NMIs");
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Counts instructions and calls.
struct Counts {
    all: AddressHash,
    calls: CallSink<'static, fn(Step)>,
}

impl ExecutionSink for Counts {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        insns.for_each(|ip| self.all.add(ip));
        self.calls.insns(insns);
    }
    fn event(&mut self, event: &Event) {
        self.calls.event(event);
    }
}

fn trace() -> Result<(), ShortError> {
    // SAFETY: all RAM is mapped there, write-back.
    let memory = unsafe { FramePool::new(&mut SingleFrames, PHYSICAL_MEMORY_OFFSET, 16 << 10) };
    // SAFETY: the linker puts the kernel's code between these symbols; nothing writes to it.
    let code = unsafe { kernel_code(&raw const machine::__text_start, &raw const machine::__text_end) };
    let count: fn(Step) = |step| _ = CALLS.fetch_add((step.kind == StepKind::Call).into(), Relaxed);
    let sink = Counts { all: AddressHash::new(), calls: CallSink::new([code], count) };
    machine::mark_truth(1);
    LIVE.start(memory, [code], &PtConfig::new().os(true), sink)?;
    work();
    let ended = LIVE.stop()?;
    machine::mark_truth(0);
    assert!(ended.is_whole(), "{}, {} errors", ended.loss, ended.errors);
    let served = LIVE.slot().handler(|handler| handler.counts().served)?;
    let (all, calls) = (ended.sink.all, CALLS.load(Relaxed));
    println!("pmis={served} instructions={} hash={:#x} calls={calls}", all.count(), all.value());
    Ok(())
}

// The traced workload.

const NUMBERS: usize = 150;

#[inline(never)]
fn work() {
    let mut numbers = [0_u32; NUMBERS];
    let mut random = 1_u32;
    for number in &mut numbers {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *number = random >> 8;
    }
    let comparisons: [fn(u32, u32) -> bool; 2] = [|a, b| a < b, |a, b| a > b];
    for comparison in black_box(comparisons) {
        heapsort(&mut numbers, comparison);
        assert!(numbers.windows(2).all(|pair| !comparison(pair[1], pair[0])), "not sorted");
    }
}

fn heapsort(numbers: &mut [u32], less: fn(u32, u32) -> bool) {
    for root in (0..numbers.len() / 2).rev() {
        sink(numbers, root, less);
    }
    for end in (1..numbers.len()).rev() {
        numbers.swap(0, end);
        sink(&mut numbers[..end], 0, less);
    }
}

#[inline(never)]
fn sink(numbers: &mut [u32], mut root: usize, less: fn(u32, u32) -> bool) {
    while let Some(mut child) = Some(2 * root + 1).filter(|&child| child < numbers.len()) {
        if child + 1 < numbers.len() && less(numbers[child], numbers[child + 1]) {
            child += 1;
        }
        if !less(numbers[root], numbers[child]) {
            return;
        }
        numbers.swap(root, child);
        root = child;
    }
}
