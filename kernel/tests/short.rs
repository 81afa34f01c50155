//! The short way traces what the full way does.

mod common;

use common::{Machine, Ram, Registers, assert_same, user_code};
use pugmark_decoder_core::block_cache::{ExecutionSink, InstructionRun};
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::flow::FlowItem;
use pugmark_decoder_core::image::Section;
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::memory::{Frames, Request};
use pugmark_kernel::pmi::Pmi;
use pugmark_kernel::short::{FramePool, Live, ShortError, kernel_code, snapshot_of};
use pugmark_kernel::slot::SlotError;
use pugmark_model::intel::IntelSettings;
use std::cell::RefCell;
use std::ops::Range;
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, PhysFrame, Size4KiB};

const CODE: u64 = 0x40_0000;

/// Returns the machine's user code: a jump in every 16 bytes.
fn code() -> Section<'static> {
    let mut code = vec![0; 0x4000];
    code.chunks_mut(0x10).for_each(|place| place[..2].copy_from_slice(&[0xff, 0xe0]));
    let code = code.leak().as_ptr_range();
    // SAFETY: it stays there, and nothing writes to it.
    let code = unsafe { kernel_code(code.start, code.end) };
    assert_eq!(code.bytes.len(), 0x4000);
    Section { base: CODE, ..code }
}

/// The machine's memory as single frames.
struct Single<'a>(&'a Ram);

// SAFETY: the memory gives each block out once.
unsafe impl FrameAllocator<Size4KiB> for Single<'_> {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let frame = self.0.allocate(Request { size: 4096, align: 4096, limit: u64::MAX })?;
        Some(PhysFrame::containing_address(frame))
    }
}

fn pool(ram: &Ram, bytes: u64) -> FramePool {
    let offset = (ram.pointer(PhysAddr::new(Ram::BASE)).as_ptr() as u64).wrapping_sub(Ram::BASE);
    // SAFETY: the memory is mapped there as long as the machine lives, which is longer than the pool.
    unsafe { FramePool::new(&mut Single(ram), offset, bytes) }
}

#[test]
fn a_snapshot_in_single_frames_is_what_was_executed() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let (code, memory) = ([code()], pool(&machine.ram, 64 << 10));
    let before = memory.frames();
    let work = || {
        machine.run(9000);
        machine.deliver();
    };
    let trace = snapshot_of(machine.unit(), &memory, 64 << 10, &user_code(), work).unwrap();
    assert!(trace.loss().is_none() && trace.stopped.trace.len() > 3 * 4096);
    let needed = trace.stopped.trace.len();
    let refused = trace.decoder(&code, &mut []).map(|_| ());
    assert_eq!(refused, Err(ShortError::Scratch { needed }));
    let mut scratch = vec![0; needed as usize];
    let mut flow = trace.decoder(&code, &mut scratch).unwrap();
    let mut addresses = vec![];
    while let Some(item) = flow.next().unwrap() {
        addresses.extend(match item {
            FlowItem::Insn(insn) => Some(insn.ip),
            FlowItem::Event(_) => None,
        });
    }
    let jumps = machine.jumps();
    assert_same(&addresses[1..], &jumps[..jumps.len() - 1], "all that was executed");
    drop(trace);
    assert_eq!(memory.frames(), before, "the frames are in the pool again");
}

#[test]
fn a_snapshot_without_memory_does_not_call_the_function() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let memory = pool(&machine.ram, 8192);
    let trace = snapshot_of(machine.unit(), &memory, 12288, &user_code(), || panic!("called"));
    assert!(matches!(trace.map(|_| ()), Err(ShortError::Buffer(_))));
    assert_eq!(memory.frames(), 3);
}

#[test]
fn a_snapshot_that_is_full_says_so() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let memory = pool(&machine.ram, 8192);
    let trace = snapshot_of(machine.unit(), &memory, 8192, &user_code(), || machine.run(90_000)).unwrap();
    assert_eq!(trace.loss().stop, 1, "{}", trace.loss());
}

/// The addresses of all instructions.
#[derive(Debug, Default)]
struct Executed(Vec<u64>);

impl ExecutionSink for Executed {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.0.extend(insns);
    }
    fn event(&mut self, _: &Event) {}
}

thread_local! {
    /// This processor.
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

fn processor() -> (Registers, Registers) {
    MACHINE.with_borrow(|machine| {
        let machine = machine.as_ref().unwrap();
        (machine.registers(), machine.registers())
    })
}

type TestLive = Live<Registers, Registers, Executed, 4096>;

/// Returns a machine that is this processor, and its trace.
fn live() -> (Machine, &'static TestLive) {
    live_on("skylake")
}

fn live_on(profile: &str) -> (Machine, &'static TestLive) {
    let machine = Machine::new(profile, IntelSettings::default());
    MACHINE.set(Some(machine.clone()));
    machine.disarm();
    // SAFETY: one thread uses it, with one machine.
    let live = unsafe { Live::new(Delivery::Nmi, processor) };
    (machine, Box::leak(Box::new(live)))
}

#[test]
fn a_live_trace_is_all_that_was_executed_and_can_be_started_again() {
    // Half of the memory is left for what is traced until the interrupt is served.
    all_is_executed_again_and_again("skylake", 16 << 10, 8192..8448);
}

#[test]
fn a_live_trace_whose_tables_list_one_region_each_is_all_that_was_executed() {
    // Half of the frames are tables, and each region has an interrupt at its end.
    all_is_executed_again_and_again("broadwell", 32 << 10, 1..4352);
}

fn all_is_executed_again_and_again(profile: &str, bytes: u64, first: Range<u64>) {
    let (machine, live) = live_on(profile);
    let mut memory = pool(&machine.ram, bytes);
    for _ in 0..3 {
        let frames = memory.frames();
        machine.forget_jumps();
        live.start_unit(machine.unit(), memory, [code()], &user_code(), Executed::default()).unwrap();
        let (mut pmis, before) = (0, machine.ram.written());
        for _ in 0..20_000 {
            if machine.jump().is_some() {
                if pmis == 0 {
                    let written = machine.ram.written() - before;
                    assert!(first.contains(&written), "{written} bytes before the first interrupt");
                }
                machine.deliver();
                assert_eq!(live.interrupt(CODE), Ok(Pmi::Served));
                pmis += 1;
            }
        }
        machine.deliver();
        let ended = live.stop().unwrap();
        assert!(ended.is_whole() && pmis > 3, "{}, {} errors, {pmis} PMIs", ended.loss, ended.errors);
        let (addresses, jumps) = (&ended.sink.0, machine.jumps());
        assert_same(&addresses[1..], &jumps[..jumps.len() - 1], "all that was executed");
        memory = ended.memory;
        assert_eq!(memory.frames(), frames);
    }
}

#[test]
fn a_live_trace_that_does_not_start_gives_its_memory_back() {
    let (machine, live) = live();
    let sink = Executed::default;
    // One region, and so none that is spare.
    let refused = live.start_unit(machine.unit(), pool(&machine.ram, 1), [code()], &user_code(), sink());
    assert!(matches!(refused, Err(ShortError::Buffer(_))), "{refused:?}");
    assert_eq!(live.take_memory().map(|memory| memory.frames()), Some(2));
    assert!(live.take_memory().is_none());
    assert!(matches!(live.stop(), Err(ShortError::Slot(SlotError::Empty))));
    live.start_unit(machine.unit(), pool(&machine.ram, 8192), [code()], &user_code(), sink()).unwrap();
    // While it traces, its parts are in use.
    assert!(live.take_memory().is_none());
    let again = live.start(pool(&machine.ram, 8192), [code()], &user_code(), sink());
    assert_eq!(again, Err(ShortError::Slot(SlotError::Occupied)));
    machine.run(10);
    machine.deliver();
    assert!(live.stop().unwrap().is_whole());
}

#[test]
fn a_snapshot_whose_tables_list_one_region_each_has_the_first_one_and_says_so() {
    let machine = Machine::new("broadwell", IntelSettings::default());
    let memory = pool(&machine.ram, 64 << 10);
    let trace = snapshot_of(machine.unit(), &memory, 32 << 10, &user_code(), || machine.run(90_000)).unwrap();
    // No interrupt moves the trace to the next region.
    assert!(!trace.loss().is_none(), "{}", trace.loss());
    assert!((1..=4096).contains(&trace.stopped.trace.len()), "{} bytes", trace.stopped.trace.len());
}

#[test]
fn a_live_trace_that_is_paused_has_what_is_executed_between_a_resume_and_a_pause() {
    let (machine, live) = live();
    live.slot().pause().unwrap();
    let memory = pool(&machine.ram, 64 << 10);
    live.start_unit(machine.unit(), memory, [code()], &user_code(), Executed::default()).unwrap();
    machine.run(100);
    let mut expected = vec![];
    for _ in 0..2 {
        assert_eq!(live.slot().resume(), Ok(true));
        machine.forget_jumps();
        machine.run(50);
        expected.extend(machine.jumps());
        // The pause is in the kernel.
        machine.deliver();
        live.slot().pause().unwrap();
        machine.run(70);
    }
    let ended = live.stop().unwrap();
    assert!(ended.is_whole(), "{}, {} errors", ended.loss, ended.errors);
    // The target of each last jump was not executed any more.
    let targets: Vec<_> = expected.chunks(50).flat_map(|jumps| &jumps[..49]).copied().collect();
    let decoded: Vec<_> = ended.sink.0.chunks(50).flat_map(|addresses| &addresses[1..]).copied().collect();
    assert_same(&decoded, &targets, "what was executed between a resume and a pause");
}

#[test]
fn a_live_trace_that_nobody_serves_is_not_whole() {
    let (machine, live) = live();
    live.start_unit(machine.unit(), pool(&machine.ram, 8192), [code()], &user_code(), Executed::default())
        .unwrap();
    machine.run(20_000);
    machine.deliver();
    let ended = live.stop().unwrap();
    assert!(
        !ended.is_whole() && ended.loss.stop == 1 && ended.errors == 0,
        "{}, {} errors",
        ended.loss,
        ended.errors
    );
}
