//! A kernel with programs at user level: it traces one thread of one program, in the program and in the kernel, while
//! other threads run in turn with it, and prints which functions of both the thread has called, by the short way.
#![no_std]
#![no_main]

use machine::frames::SingleFrames;
use machine::programs::Program;
use machine::symbols::Function;
use machine::{PHYSICAL_MEMORY_OFFSET, println, threads};
use pugmark_decoder_core::block_cache::{ExecutionSink, InstructionRun};
use pugmark_decoder_core::calls::{Calls, Step, StepKind};
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::flow::FlowItem;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::{AddressSpace, Section};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::lapic::{Delivery, XApic};
use pugmark_kernel::pmi::Pmi;
use pugmark_kernel::short::{FramePool, Live, ShortError, kernel_code};

machine::main!(main);

fn main() {
    println!("run threads");
    machine::traps::on_nmi(nmi);
    threads::on_switch(ends, begins);
    match trace() {
        Ok(()) => println!("ok threads\ndone 1 0"),
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
static LIVE: Live<GuardedMsr, XApic, Profile, { 16 << 10 }, 2> =
    unsafe { Live::new(Delivery::Nmi, processor) };

/// Handles NMIs.
fn nmi(rip: u64) {
    let pmi = LIVE.interrupt(rip).expect("the registers are there");
    assert!(pmi != Pmi::NotOurs, "nobody else sends NMIs");
}

/// The number of the thread that is traced.
const TRACED: usize = 2;

/// Called when a thread's turn ends, in its address space.
fn ends(thread: usize) {
    if thread == TRACED {
        LIVE.slot().pause().expect("the registers are there");
    }
}

/// Called when a thread's turn begins, in its address space: the trace goes on in the one in which it was paused.
fn begins(thread: usize) {
    machine::mark_truth(thread as u32);
    if thread == TRACED {
        LIVE.slot().resume().expect("the registers are there");
    }
}

/// Counts all instructions, those of the program, and the calls of each function.
struct Profile {
    code: [Section<'static>; 2],
    all: AddressHash,
    user: AddressHash,
    calls: Calls,
    called: [(u64, u64); 64],
}

impl Profile {
    fn count(&mut self, step: Option<Step>) {
        let Some(Step { to, .. }) = step.filter(|step| step.kind == StepKind::Call) else { return };
        let place = self.called.iter_mut().find(|(function, _)| [0, to].contains(function));
        let (function, calls) = place.expect("room for one more function");
        (*function, *calls) = (to, *calls + 1);
    }
}

impl ExecutionSink for Profile {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        let of_program = insns.ip >= self.code[1].base;
        for ip in insns {
            self.all.add(ip);
            if of_program {
                self.user.add(ip);
            }
        }
        let step = self.calls.run(insns, &self.code);
        self.count(step);
    }
    fn event(&mut self, event: &Event) {
        let step = self.calls.step(&FlowItem::Event(*event));
        self.count(step);
    }
}

fn trace() -> Result<(), ShortError> {
    // SAFETY: all RAM is mapped there, write-back.
    let memory = unsafe { FramePool::new(&mut SingleFrames, PHYSICAL_MEMORY_OFFSET, 8 << 10) };
    let [mut traced, mut other] =
        [(); 2].map(|()| Program::load(machine::program!(concat!(env!("OUT_DIR"), "/program"))));
    // SAFETY: the linker puts the kernel's code between these symbols; nothing writes to it.
    let kernel = unsafe { kernel_code(&raw const machine::__text_start, &raw const machine::__text_end) };
    let program = Section { base: traced.start, bytes: traced.code, space: AddressSpace::Cr3(traced.cr3) };
    let numbers = [traced.spawn(0), traced.spawn(7), traced.spawn(8), other.spawn(9)];
    let (code, none) = ([kernel, program], AddressHash::new());
    let sink = Profile { code, all: none, user: none, calls: Calls::new(), called: [(0, 0); 64] };
    LIVE.slot().pause().map_err(ShortError::Stop)?;
    LIVE.start(memory, code, &PtConfig::new().os(true).user(true), sink)?;
    threads::run();
    let ended = LIVE.stop()?;
    assert!(ended.is_whole(), "{}, {} errors", ended.loss, ended.errors);
    for number in numbers {
        println!("result {number} {}", threads::result(number).expect("it has ended"));
    }
    let Profile { all, user, called, .. } = ended.sink;
    let served = LIVE.slot().handler(|handler| handler.counts().served)?;
    println!("pmis={served}\ninstructions={} hash={:#x}", all.count(), all.value());
    println!("user instructions={} hash={:#x}", user.count(), user.value());
    for (function, calls) in called.into_iter().filter(|(_, calls)| *calls > 0) {
        println!("calls {calls} {}", Function(function));
    }
    Ok(())
}
