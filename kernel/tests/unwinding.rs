//! A panic that unwinds through a callback of the kernel (a sink, registers, memory, a guest, a decoder's sink or
//! image) leaves the unit off; the driver reports that and resumes at its next use.

mod common;

use common::store::{INTERRUPT, PERIOD, Recording, What, sampled, targets};
use common::{Collector, Machine, Ram, Registers, assert_same, tips, user_code};
use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink, InstructionRun};
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::resume::{BlockStream, Kept, Lost};
use pugmark_kernel::drain::Sink;
use pugmark_kernel::intel::ds::{DsState, DsUnit, Half};
use pugmark_kernel::intel::lbr::{Branch, LbrConfig, LbrUnit};
use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, PtDecoder, PtRunning, PtState, PtTracer, RegionSize};
use pugmark_kernel::lapic::{Delivery, LocalApic};
use pugmark_kernel::lifecycle::NotCurrent;
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::memory::{Frames, PhysAddr, Request};
use pugmark_kernel::pmi::{Abandoned, Handler, Pmi, PmiSource};
use pugmark_kernel::slot::Slot;
use pugmark_model::intel::IntelSettings;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;

const FULL: Mode = Mode::StopWhenFull { spare: 1 };
const LEFT_OFF: PtState = PtState::Abandoned(Abandoned::NotResumed);
const ONCE: Loss = Loss { abandoned: 1, ..Loss::NONE };

fn layout() -> Layout {
    Layout::topa(RegionSize::K4, 8)
}

fn skylake() -> Machine {
    Machine::new("skylake", IntelSettings::default())
}

/// Panics without a message.
fn panic_now() {
    resume_unwind(Box::new("unwinds"));
}

/// Returns the result of `work`, or `None` if a panic has unwound through it.
fn caught<R>(work: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// A sink that panics in call number `panics_at`, before it takes anything.
struct PanickingSink {
    taken: Collector,
    panics_at: Option<usize>,
}

impl PanickingSink {
    fn at(call: usize) -> Self {
        Self { taken: Collector::new(), panics_at: Some(call) }
    }

    fn call(&mut self) {
        match &mut self.panics_at {
            Some(0) => {
                self.panics_at = None;
                panic_now();
            }
            Some(left) => *left -= 1,
            None => {}
        }
    }
}

impl Sink for PanickingSink {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        self.call();
        self.taken.bytes(bytes)
    }

    fn gap(&mut self, gap: Gap) -> bool {
        self.call();
        self.taken.gap(gap)
    }
}

/// Checks the jumps that a sink has received: of `before` jumps until the panic, and of those after the next drain.
fn assert_told(machine: &Machine, taken: &Collector, before: usize, lost: usize, what: &str) {
    assert_eq!(taken.gaps, [Gap::Abandoned], "{what}");
    let jumps = machine.executed();
    assert_same(&tips(&taken.stretches[0]), &jumps[..before], what);
    assert_same(&tips(&taken.stretches[1]), &jumps[before + lost..], what);
    assert_eq!(*machine.ram.strays.borrow(), [], "{what}");
}

#[test]
fn a_panic_of_the_sink_leaves_the_trace_off_and_the_next_drain_resumes_it() {
    for call in 0..3 {
        let machine = skylake();
        let mut tracing = machine.start(layout(), FULL);
        machine.run(4000);
        let mut sink = PanickingSink::at(call);
        assert!(caught(|| tracing.drain(&mut sink)).is_none());
        assert_eq!((machine.is_tracing(), tracing.state(), *tracing.loss()), (false, LEFT_OFF, ONCE));
        machine.run(7);
        assert_eq!(tracing.drain(&mut sink), Ok(PtState::Tracing));
        machine.run(50);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        sink.taken.finish(&stopped.trace);
        assert_told(&machine, &sink.taken, 4000, 7, &format!("call {call}"));
        assert_eq!(stopped.loss, ONCE);
    }
}

#[test]
fn a_panic_at_each_register_access_leaves_the_trace_off_and_says_so() {
    for access in 0.. {
        let machine = skylake();
        let mut tracing = machine.start(layout(), FULL);
        machine.run(10);
        let mut sink = Collector::new();
        machine.at_access(access, panic_now);
        if caught(|| tracing.drain(&mut sink)).is_some() {
            assert!(access > 10, "{access} accesses");
            machine.at_access(0, || ());
            break;
        }
        let what = format!("access {access}");
        assert_eq!((machine.is_tracing(), tracing.state()), (false, LEFT_OFF), "{what}");
        machine.run(7);
        assert_eq!(tracing.drain(&mut sink), Ok(PtState::Tracing), "{what}");
        machine.run(50);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        sink.finish(&stopped.trace);
        assert_told(&machine, &sink, 10, 7, &what);
        assert_eq!(stopped.loss, ONCE, "{what}");
    }
}

/// The machine's memory, whose mapping panics at a call.
struct PanickingRam<'a> {
    ram: &'a Ram,
    panics_at: Cell<Option<u32>>,
}

// SAFETY: the same blocks at the same places.
unsafe impl Frames for PanickingRam<'_> {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        self.ram.allocate(request)
    }

    unsafe fn free(&self, address: PhysAddr, request: Request) {
        // SAFETY: the caller promises the same.
        unsafe { self.ram.free(address, request) }
    }

    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        match self.panics_at.get() {
            Some(0) => {
                self.panics_at.set(None);
                panic_now();
            }
            left => self.panics_at.set(left.map(|left| left - 1)),
        }
        self.ram.pointer(address)
    }
}

#[test]
fn a_panic_of_the_frame_source_leaves_the_trace_off_and_frees_nothing_early() {
    for mode in [FULL, Mode::Circular { interrupt_every: 1 }] {
        for call in 0.. {
            let machine = skylake();
            let frames = PanickingRam { ram: &machine.ram, panics_at: Cell::new(None) };
            let buffer = Buffer::allocate(&frames, &machine.capabilities(), layout(), mode).unwrap();
            let started = machine.unit().start(&user_code(), buffer);
            let mut tracing: PtRunning<_, _> = started.map_err(|failed| failed.error()).unwrap();
            machine.run(10);
            let live = machine.ram.live();
            let mut sink = Collector::new();
            frames.panics_at.set(Some(call));
            if caught(|| tracing.drain(&mut sink)).is_some() {
                assert!(call > 0, "it is asked for memory");
                frames.panics_at.set(None);
                break;
            }
            let what = format!("{mode:?} call {call}");
            assert_eq!((machine.is_tracing(), tracing.state()), (false, LEFT_OFF), "{what}");
            assert_eq!(machine.ram.live(), live, "{what}");
            assert_eq!(tracing.drain(&mut sink), Ok(PtState::Tracing), "{what}");
            machine.run(50);
            assert_eq!(tracing.drain(&mut sink), Ok(PtState::Tracing), "{what}");
            assert_told(&machine, &sink, 10, 0, &what);
            drop(tracing);
            assert_eq!(machine.ram.live(), 0, "{what}");
        }
    }
}

#[test]
fn a_panic_while_a_guest_runs_leaves_the_trace_off() {
    let machine = Machine::with_vmx("skylake", IntelSettings::default(), false);
    let mut tracing = machine.start(layout(), FULL);
    machine.run(10);
    assert!(caught(|| tracing.trace_guest(|_| panic_now())).is_none());
    assert_eq!((machine.is_tracing(), tracing.state(), *tracing.loss()), (false, LEFT_OFF, ONCE));
    // A trace of guests alone has lost nothing.
    tracing.suspend().unwrap();
    assert!(caught(|| tracing.trace_guest(|_| panic_now())).is_none());
    assert_eq!((tracing.state(), *tracing.loss()), (PtState::Suspended, ONCE));
}

#[test]
fn a_source_that_is_dropped_or_forgotten_between_its_halt_and_its_resume_is_told() {
    for forgotten in [false, true] {
        let machine = skylake();
        let mut tracing = machine.start(layout(), FULL);
        machine.run(10);
        let mut sink = Collector::new();
        let mut source = tracing.source(&mut sink);
        source.quiesce().unwrap();
        match forgotten {
            true => std::mem::forget(source),
            false => drop(source),
        }
        assert!(!machine.is_tracing());
        assert!(forgotten || tracing.state() == LEFT_OFF);
        machine.run(7);
        let mut sink = Collector::new();
        assert_eq!(tracing.drain(&mut sink), Ok(PtState::Tracing));
        assert_eq!(*tracing.loss(), ONCE);
        machine.run(5);
        assert_eq!(tracing.drain(&mut sink), Ok(PtState::Tracing));
        assert_told(&machine, &sink, 10, 7, "a source");
    }
}

type Shared<'a> =
    Slot<PtTracer<Registers, &'a Ram, PanickingSink>, Box<dyn Fn() -> (Registers, Registers) + 'a>>;

/// Returns a slot with a trace whose sink panics in its first call.
fn slot(machine: &Machine) -> Shared<'_> {
    machine.disarm();
    let registers = Box::new(|| (machine.registers(), machine.registers()));
    // SAFETY: one thread uses it, with one machine.
    let slot: Shared<'_> = unsafe { Slot::new(Handler::new(Delivery::Nmi), registers) };
    let buffer = machine.buffer(layout(), FULL);
    slot.start(|| PtTracer::start(machine.unit(), &user_code(), buffer, PanickingSink::at(0))).unwrap();
    slot
}

#[test]
fn a_panic_in_the_handler_leaves_the_interrupt_to_the_next_one_or_the_next_use() {
    for by_nmi in [false, true] {
        let machine = skylake();
        let slot = slot(&machine);
        machine.jump_until_pmi();
        let before = machine.executed().len();
        assert!(caught(|| slot.interrupt(None)).is_none());
        assert!(!machine.is_tracing());
        machine.run(7);
        if by_nmi {
            // An NMI of another cause.
            assert_eq!(slot.interrupt(Some(0xbad)), Ok(Pmi::Served));
        }
        let state = slot.with(|tracer| (tracer.running.state(), *tracer.running.loss())).unwrap();
        assert_eq!(state, if by_nmi { (PtState::Tracing, ONCE) } else { (LEFT_OFF, ONCE) });
        assert!(machine.is_tracing(), "resumed when the slot was released");
        assert!(!machine.registers().lvt_pc().unwrap().is_masked());
        machine.jump_until_pmi();
        assert_eq!(slot.interrupt(None), Ok(Pmi::Served));
        let (stopped, sink) = slot.stop(|tracer, _| tracer.stop()).unwrap().unwrap();
        assert_told(&machine, &sink.taken, before, 7, "the handler");
        assert_eq!(stopped.loss, ONCE);
    }
}

#[test]
fn an_interrupt_that_waits_for_a_slot_is_served_when_a_panic_releases_it() {
    let machine = skylake();
    let slot = slot(&machine);
    slot.with(|tracer| tracer.sink.panics_at = None).unwrap();
    type Use<'a> = &'a dyn Fn(&Shared<'_>);
    let uses: [Use<'_>; 2] = [
        &|slot| {
            let _ = slot.with(|_| {
                machine.jump_until_pmi();
                assert_eq!(slot.interrupt(None), Ok(Pmi::Later));
                panic_now();
            });
        },
        &|slot| {
            let _ = slot.handler(|_| {
                machine.jump_until_pmi();
                assert_eq!(slot.interrupt(None), Ok(Pmi::Later));
                panic_now();
            });
        },
    ];
    for (n, used) in uses.into_iter().enumerate() {
        assert!(caught(|| used(&slot)).is_none());
        assert!(!machine.registers().lvt_pc().unwrap().is_masked(), "{n}: served");
        assert!(machine.is_tracing());
    }
    let (stopped, sink) = slot.stop(|tracer, _| tracer.stop()).unwrap().unwrap();
    assert_same(&tips(sink.taken.whole()), &machine.executed(), "all of it");
    assert_eq!(stopped.loss, Loss::NONE);
}

fn record(machine: &Machine, what: What) -> Recording<'_> {
    let unit = DsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()).unwrap();
    let area = machine.area(&unit, what);
    unit.start(&what.config("skylake"), area).map_err(|failed| failed.error()).unwrap()
}

#[test]
fn a_panic_at_each_register_access_or_sink_leaves_both_halves_of_the_debug_store_off() {
    let left_off = Some(DsState::Abandoned(Abandoned::NotResumed));
    let sinks = [(Some(0), None), (None, Some(0))];
    let accesses = (0..).map(|access| (None, None, Some(access)));
    for (branches, samples, access) in sinks.map(|(b, s)| (b, s, None)).into_iter().chain(accesses) {
        let machine = skylake();
        let format =
            DsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()).unwrap();
        let format = format.capabilities().pebs.unwrap().format;
        let mut running = record(&machine, What::Both);
        machine.run(2 * PERIOD as usize + 20);
        let [mut branches, mut samples] =
            [branches, samples].map(|panics_at| PanickingSink { taken: Collector::new(), panics_at });
        if let Some(access) = access {
            machine.at_access(access, panic_now);
        }
        if caught(|| running.drain(&mut branches, &mut samples)).is_some() {
            assert!(access > Some(8), "{access:?} accesses");
            machine.at_access(0, || ());
            break;
        }
        let what = format!("{access:?}");
        for half in [Half::Bts, Half::Pebs] {
            assert_eq!((running.state(half), *running.loss(half)), (left_off, ONCE), "{what} {half:?}");
        }
        machine.run(50);
        running.drain(&mut branches, &mut samples).unwrap();
        machine.run(10);
        running.drain(&mut branches, &mut samples).unwrap();
        assert_eq!(
            (&branches.taken.gaps[..], &samples.taken.gaps[..]),
            (&[Gap::Abandoned][..], &[Gap::Abandoned][..])
        );
        let jumps = machine.executed();
        let before = 2 * PERIOD as usize + 20;
        assert_same(&targets(&branches.taken), &[&jumps[..before], &jumps[before + 50..]].concat(), &what);
        assert_eq!(sampled(&samples.taken, format).len(), 2, "{what}");
    }
}

#[test]
fn a_panic_while_a_guest_runs_beside_the_debug_store_leaves_it_off() {
    let machine = skylake();
    let mut running = record(&machine, INTERRUPT);
    assert!(caught(|| running.run_guest(panic_now)).is_none());
    assert_eq!(running.state(Half::Bts), Some(DsState::Abandoned(Abandoned::NotResumed)));
    running.resume().unwrap();
    assert_eq!(running.state(Half::Bts), Some(DsState::Recording));
}

#[test]
fn last_branches_after_a_panic_at_each_register_access_are_outdated() {
    for access in 0.. {
        let machine = skylake();
        let unit =
            LbrUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()).unwrap();
        let config = LbrConfig::new().os(false);
        let mut running = unit.start(&config).map_err(|failed| failed.error()).unwrap();
        machine.run(10);
        machine.at_access(access, panic_now);
        if caught(|| running.last(&mut [Branch::default(); 32]).is_ok()).is_some() {
            assert!(access > 32, "{access} accesses");
            machine.at_access(0, || ());
            break;
        }
        machine.run(50);
        let mut out = [Branch::default(); 32];
        let Err(NotCurrent::Outdated { why: Gap::Abandoned, before }) = running.last(&mut out) else {
            panic!("access {access}: outdated");
        };
        assert!(before.is_empty() || before[0].to == machine.executed()[9], "access {access}");
        machine.run(1);
        assert_eq!(running.last(&mut out).unwrap()[0].to, machine.executed()[60], "access {access}");
    }
}

/// A sink that takes the addresses of all instructions; one of its calls panics.
struct ExecutedUntilPanic {
    addresses: Vec<u64>,
    lost: u32,
    panics_at: Option<u32>,
}

impl ExecutionSink for ExecutedUntilPanic {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        match self.panics_at {
            Some(0) => {
                self.panics_at = None;
                panic_now();
            }
            left => self.panics_at = left.map(|left| left - 1),
        }
        self.addresses.extend(insns);
    }
    fn event(&mut self, _: &Event) {}
    fn lost(&mut self, _: &Lost) {
        self.lost += 1;
    }
}

#[test]
fn a_panic_of_the_decoders_sink_restarts_the_decoder_at_a_psb() {
    for call in [0, 1, 10, 700, 3000] {
        let machine = skylake();
        let mut code = vec![0; 0x4000];
        code.chunks_mut(0x10).for_each(|place| place[..2].copy_from_slice(&[0xff, 0xe0]));
        let sections = [Section { base: 0x40_0000, bytes: &code, space: AddressSpace::Any }];
        let (mut kept, mut blocks) = (<Kept>::new(), vec![0; 1 << 16]);
        let config = user_code().for_decoder(&machine.capabilities()).unwrap();
        let stream = BlockStream::new(Image::new(&sections), config, &mut kept);
        let sink = ExecutedUntilPanic { addresses: Vec::new(), lost: 0, panics_at: Some(call) };
        let mut decoder = PtDecoder::new(stream, BlockCache::new(&mut blocks), sink);
        let mut tracing = machine.start(layout(), FULL);
        machine.run(4000);
        assert!(caught(|| tracing.drain(&mut decoder)).is_none(), "call {call}");
        assert_eq!(tracing.state(), LEFT_OFF);
        assert_eq!(tracing.drain(&mut decoder), Ok(PtState::Tracing));
        machine.run(1000);
        machine.deliver();
        let mut stopped = tracing.stop().map_err(|failed| failed.fault).unwrap();
        assert!(stopped.trace.drain_to(&mut decoder));
        decoder.finish();
        assert!(decoder.sink.lost >= 2, "call {call}: the panic and the gap after it");
        // From the restart on nothing is missing.
        let (addresses, jumps) = (&decoder.sink.addresses, machine.executed());
        assert_same(&addresses[addresses.len() - 999..], &jumps[4000..4999], "after the gap");
    }
}
