//! Two units of one processor are used in all orders: in spite of anything that safe code does with them, the processor
//! never writes to freed memory, no unit that is on names such memory, and losses of a trace are counted.

mod common;

use common::xsave::Saved;
use common::{Collector, Machine, Ram, run_within, synced, tips, user_code};
use pugmark_kernel::intel::pt::{Layout, Mode, PtRunning, PtTask, PtUnit, RegionSize, XsavedMsr};
use pugmark_kernel::lapic::{Delivery, LocalApic};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_kernel::slot::{Interrupt, Slot, Traced};
use pugmark_model::intel::IntelSettings;
use std::cell::RefCell;
use std::fmt::Debug;

/// A processor, its memory, and the configuration of its traces.
#[derive(Clone, Copy, Debug)]
struct Kind {
    profile: &'static str,
    layout: Layout,
    mode: Mode,
    /// True if XSAVES saves the registers.
    saved: bool,
    /// True if the allocator gives freed blocks out again.
    reuses: bool,
}

const PAGES: Layout =
    Layout::Topa { size: RegionSize::K4, regions: 2, regions_per_table: 2, contiguous: false };
const ONE_RANGE: Layout = Layout::SingleRange { bytes: 0x1000 };
const FULL: Mode = Mode::StopWhenFull { spare: 1 };
const KINDS: [Kind; 5] = [
    Kind { profile: "skylake", layout: PAGES, mode: FULL, saved: false, reuses: false },
    Kind { profile: "icelake", layout: ONE_RANGE, mode: Mode::Overwrite, saved: false, reuses: false },
    Kind { profile: "icelake", layout: ONE_RANGE, mode: Mode::Overwrite, saved: false, reuses: true },
    Kind { profile: "broadwell", layout: PAGES, mode: FULL, saved: false, reuses: false },
    Kind { profile: "icelake", layout: PAGES, mode: Mode::Overwrite, saved: true, reuses: false },
];

/// A step of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// The unit is detected and started; refused if another one is on.
    Start,
    /// The same, but a unit that is on is turned off.
    TakeOver,
    Drain,
    Suspend,
    Wake,
    GoOn,
    Resume,
    Switch,
    /// A handler serves a PMI with this unit as its source.
    Interrupt,
    Stop,
    Drop,
    Forget,
}

const OPS: [Op; 12] = [
    Op::Start,
    Op::TakeOver,
    Op::Drain,
    Op::Suspend,
    Op::Wake,
    Op::GoOn,
    Op::Resume,
    Op::Switch,
    Op::Interrupt,
    Op::Stop,
    Op::Drop,
    Op::Forget,
];

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// An operation with unit 0 or 1.
    Unit(usize, Op),
    /// The gate that both units obey is closed.
    Pause,
    /// The gate is opened, and both traces are resumed.
    Unpause,
}

fn steps() -> impl Iterator<Item = Step> + Clone {
    let units = [0, 1].into_iter().flat_map(|n| OPS.into_iter().map(move |op| Step::Unit(n, op)));
    units.chain([Step::Pause, Step::Unpause])
}

thread_local! {
    /// The machine whose registers the gate's slot uses.
    static HERE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Content of a slot that exists only for its gate.
struct Nothing;

impl Traced for Nothing {
    fn serve<M: Msr, A: LocalApic>(&mut self, _: Interrupt<'_, M, A>) -> Result<Pmi, GeneralProtection> {
        Ok(Pmi::NotOurs)
    }
}

type Registers = (common::Registers, common::Registers);
type GateSlot = Slot<Nothing, fn() -> Registers>;

fn here() -> Registers {
    HERE.with_borrow(|machine| {
        let machine = machine.as_ref().expect("a machine");
        (machine.registers(), machine.registers())
    })
}

/// A trace of one unit, with the jumps that it should record.
struct Trace<'a> {
    running: PtRunning<Saved, &'a Ram>,
    sink: Collector,
    suspended: bool,
    /// The jumps of the program while the trace should be on.
    wanted: Vec<u64>,
    /// Losses of traces that were switched away.
    left: Vec<Loss>,
}

/// A machine with two units.
struct World<'a> {
    kind: Kind,
    machine: &'a Machine,
    slot: &'static GateSlot,
    traces: [Option<Trace<'a>>; 2],
    /// Traces that are unused until the end, as if they were forgotten.
    forgotten: Vec<Trace<'a>>,
    /// True if a handler uses registers between two accesses of a call, which may then fail.
    disturbed: bool,
}

impl<'a> World<'a> {
    fn new(kind: Kind, machine: &'a Machine, slot: &'static GateSlot) -> Self {
        machine.ram.reuses.set(kind.reuses);
        HERE.set(Some(machine.clone()));
        slot.resume().unwrap();
        Self { kind, machine, slot, traces: [None, None], forgotten: Vec::new(), disturbed: false }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Pause => self.slot.pause().unwrap(),
            Step::Unpause => {
                self.slot.resume().unwrap();
                for trace in self.traces.iter_mut().flatten() {
                    trace.running.resume().unwrap();
                }
            }
            Step::Unit(n, Op::Start | Op::TakeOver) if self.traces[n].is_some() => {}
            Step::Unit(n, op @ (Op::Start | Op::TakeOver)) => self.traces[n] = self.start(op),
            Step::Unit(n, op) => {
                if let Some(trace) = self.traces[n].take() {
                    self.traces[n] = self.perform(trace, op);
                }
            }
        }
    }

    fn start(&self, op: Op) -> Option<Trace<'a>> {
        let machine = self.machine;
        let cpuid = |leaf, subleaf| machine.cpuid(leaf, subleaf);
        let registers = XsavedMsr::new(cpuid, machine.registers(), machine.registers());
        let unit = match op {
            Op::TakeOver => PtUnit::take_over(machine.capabilities(), registers).unwrap().0,
            _ => PtUnit::detect(cpuid, registers).ok()?,
        };
        let buffer = machine.buffer(self.kind.layout, self.kind.mode);
        let unit = unit.gated_by(self.slot.gate());
        let running = match unit.start(&user_code(), buffer) {
            Ok(running) => running,
            Err(failed) => {
                self.worked(Err::<(), _>(failed));
                return None;
            }
        };
        let sink = Collector::new();
        Some(Trace { running, sink, suspended: false, wanted: Vec::new(), left: Vec::new() })
    }

    /// Performs the operation, and returns the trace, unless it has ended.
    fn perform(&mut self, mut trace: Trace<'a>, op: Op) -> Option<Trace<'a>> {
        let Trace { running, sink, .. } = &mut trace;
        match op {
            Op::Start | Op::TakeOver => unreachable!("not with a trace"),
            Op::Drain => self.worked(running.drain(sink)),
            Op::Suspend => self.worked(running.suspend()),
            Op::Wake => self.worked(running.wake()),
            Op::GoOn => self.worked(running.go_on()),
            Op::Resume => self.worked(running.resume()),
            Op::Switch => self.switch(&mut trace),
            Op::Interrupt => {
                let mut handler = Handler::new(Delivery::Nmi);
                self.machine.mask();
                self.worked(self.machine.try_interrupt(&mut handler, &mut running.source(sink)));
            }
            Op::Stop => {
                self.stop(trace);
                return None;
            }
            Op::Drop => return None,
            Op::Forget => {
                self.forgotten.push(trace);
                return None;
            }
        }
        trace.suspended = match op {
            Op::Suspend => true,
            Op::Wake => false,
            _ => trace.suspended,
        };
        Some(trace)
    }

    fn worked<T>(&self, result: Result<T, impl Debug>) {
        assert!(self.disturbed || result.is_ok(), "{:?}", result.err());
    }

    /// Switches to another trace, and frees the memory of the one that ran, as a kernel does whose thread has ended.
    fn switch(&self, trace: &mut Trace<'a>) {
        let buffer = self.machine.buffer(self.kind.layout, self.kind.mode);
        let coming = PtTask::new(&self.machine.capabilities(), &user_code(), buffer).unwrap();
        let left = match trace.running.switch(coming) {
            Ok(left) => left,
            Err(failed) => return self.worked(Err::<(), _>(failed)),
        };
        trace.left.push(*left.loss());
        assert!(left.into_trace().drain_to(&mut trace.sink));
    }

    /// Stops a trace and checks that its losses are reported.
    fn stop(&self, trace: Trace<'a>) {
        let Trace { running, mut sink, wanted, left, .. } = trace;
        if self.disturbed {
            // The recording is not certain then.
            return drop(running.stop());
        }
        let mut stopped = running.stop().map_err(|failed| failed.fault).unwrap();
        if self.kind.mode == Mode::Overwrite {
            // A drain only showed the content, which is still there.
            sink = Collector::new();
        }
        assert!(stopped.trace.drain_to(&mut sink));
        let executed = self.machine.executed();
        let mut found = Vec::new();
        for (n, bytes) in sink.stretches.iter().enumerate() {
            let wrapped = n > 0 && matches!(sink.gaps[n - 1], Gap::Wrap(_));
            let targets = tips(if wrapped && !bytes.is_empty() { synced(bytes) } else { bytes });
            found.extend(targets);
        }
        assert!(found.iter().all(|target| executed.contains(target)), "what was never executed: {found:x?}");
        let told = !stopped.loss.is_none() || left.iter().any(|loss| !loss.is_none());
        let switched = self.kind.mode == Mode::Overwrite && !left.is_empty();
        assert!(told || switched || found == wanted, "{found:x?} of {wanted:x?}, and nothing is told");
        assert!(run_within(&found, &wanted, 0).is_some() || told || switched, "more than was to be traced");
    }

    /// Runs the program for a while.
    fn run(&mut self) {
        let before = self.machine.executed().len();
        self.machine.run(3);
        let paused = self.slot.gate().is_closed();
        for trace in self.traces.iter_mut().flatten().filter(|trace| !trace.suspended && !paused) {
            trace.wanted.extend(&self.machine.executed()[before..]);
        }
    }

    fn check(&self) {
        assert_eq!(*self.machine.ram.strays.borrow(), [], "the processor writes to freed memory");
        if self.machine.msr(0x570) & 1 == 1 {
            let base = self.machine.msr(0x560);
            assert!(self.machine.ram.is_live(base), "a unit that is on names freed memory: {base:#x}");
        }
    }
}

/// Performs the steps on a new machine, and then ends the rest.
fn live(kind: Kind, slot: &'static GateSlot, steps: &[Step]) {
    let make = if kind.saved { Machine::with_pt_state } else { Machine::with_memory };
    let machine = make(kind.profile, IntelSettings::default(), 256 << 10);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut world = World::new(kind, &machine, slot);
        for &step in steps {
            world.step(step);
            world.check();
            world.run();
            world.check();
        }
        for n in [0, 1] {
            world.step(Step::Unit(n, Op::Stop));
            world.run();
            world.check();
        }
        // A unit that was forgotten halts, too, and nothing else does.
        world.forgotten.clear();
        world.check();
    }));
    if let Err(panic) = outcome {
        eprintln!("{kind:?}: {steps:?}");
        std::panic::resume_unwind(panic);
    }
}

fn slot() -> &'static GateSlot {
    // SAFETY: each test thread has its own machine and slot.
    Box::leak(Box::new(unsafe { Slot::new(Handler::new(Delivery::Nmi), here as fn() -> Registers) }))
}

#[test]
fn two_units_in_all_orders_of_two_steps_after_the_second_has_come() {
    use Step::{Pause, Unit};
    let before: [&[Step]; 3] = [
        &[Unit(0, Op::Start)],
        &[Unit(0, Op::Start), Unit(1, Op::TakeOver)],
        &[Unit(0, Op::Start), Pause, Unit(1, Op::Start)],
    ];
    let slot = slot();
    for kind in KINDS {
        for before in before {
            for one in steps() {
                for two in steps() {
                    live(kind, slot, &[before, &[one, two]].concat());
                }
            }
        }
    }
}

#[test]
fn two_units_in_long_random_orders() {
    let all: Vec<Step> = steps().collect();
    let slot = slot();
    let mut random = 1_u64;
    for n in 0..2000 {
        let steps: Vec<Step> = (0..16)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                all[(random >> 33) as usize % all.len()]
            })
            .collect();
        live(KINDS[n % KINDS.len()], slot, &steps);
    }
}

/// A handler's use of its own unit between two accesses of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    /// The handler starts, stops and frees everything.
    Whole,
    /// The unit is left on, and dropped when the interrupted call is over.
    LeftOn,
    /// The unit is left suspended, and dropped when the interrupted call is over.
    LeftSuspended,
}

#[test]
fn a_unit_that_a_handler_uses_between_any_two_accesses_of_the_driver_frees_no_memory_in_use() {
    let slot = slot();
    for kind in KINDS {
        for op in [Op::Start, Op::Drain, Op::Wake, Op::Resume, Op::Switch, Op::Interrupt, Op::Stop] {
            for visit in [Visit::Whole, Visit::LeftOn, Visit::LeftSuspended] {
                let visits = (0..).take_while(|&n| visited(kind, slot, op, visit, n)).count();
                assert!(visits >= 3, "{kind:?} {op:?}: {visits}");
            }
        }
    }
}

/// Lets a handler use another unit before access `n` of a call. Returns whether there was such an access.
fn visited(kind: Kind, slot: &'static GateSlot, op: Op, visit: Visit, n: u32) -> bool {
    let make = if kind.saved { Machine::with_pt_state } else { Machine::with_memory };
    let machine: &'static Machine =
        Box::leak(Box::new(make(kind.profile, IntelSettings::default(), 128 << 10)));
    let mut world = World { disturbed: true, ..World::new(kind, machine, slot) };
    if op != Op::Start {
        world.step(Step::Unit(0, Op::Start));
        world.run();
    }
    match op {
        Op::Wake => world.step(Step::Unit(0, Op::Suspend)),
        Op::Resume => slot.pause().unwrap(),
        _ => {}
    }
    let guest: &'static RefCell<Option<World<'static>>> = Box::leak(Box::new(RefCell::new(None)));
    machine.at_access(n, move || {
        let mut other = World { disturbed: true, ..World::new(kind, machine, slot) };
        other.step(Step::Unit(1, Op::TakeOver));
        match visit {
            Visit::Whole => other.step(Step::Unit(1, Op::Stop)),
            Visit::LeftOn => {}
            Visit::LeftSuspended => other.step(Step::Unit(1, Op::Suspend)),
        }
        guest.replace(Some(other));
    });
    if op == Op::Resume {
        slot.resume().unwrap();
    }
    let what = format!("{kind:?} {op:?} {visit:?} {n}");
    world.step(Step::Unit(0, op));
    let came = !machine.cancel();
    world.run();
    assert_eq!(*machine.ram.strays.borrow(), [], "{what}");
    guest.replace(None);
    world.run();
    assert_eq!(*machine.ram.strays.borrow(), [], "{what}, after the handler's unit was dropped");
    world.step(Step::Unit(0, Op::Drop));
    world.run();
    assert_eq!(*machine.ram.strays.borrow(), [], "{what}, at the end");
    came
}
