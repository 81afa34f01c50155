//! Two recordings of one debug store are used in all orders: no record goes to freed memory, and losses of a recording
//! are counted.

mod common;

use common::store::{CIRCULAR, Recording, What, targets};
use common::{Collector, Machine, Registers};
use pugmark_kernel::drain::{Chunk, Sink};
use pugmark_kernel::intel::ds::{DsUnit, Half};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::pmi::Handler;
use pugmark_model::intel::IntelSettings;

/// A step of one recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// The unit is detected and started; refused if another one has an area.
    Start,
    /// The same, but a recording that is on is turned off.
    TakeOver,
    Drain,
    Suspend,
    Resume,
    /// A handler serves a PMI with this recording as its source.
    Interrupt,
    Stop,
    Drop,
    Forget,
}

const OPS: [Op; 9] = [
    Op::Start,
    Op::TakeOver,
    Op::Drain,
    Op::Suspend,
    Op::Resume,
    Op::Interrupt,
    Op::Stop,
    Op::Drop,
    Op::Forget,
];

type Step = (usize, Op);

struct Trace<'a> {
    running: Recording<'a>,
    branches: Collector,
    samples: Collector,
    suspended: bool,
    /// The jumps while branches were to be recorded.
    wanted: Vec<u64>,
}

struct World<'a> {
    machine: &'a Machine,
    profile: &'static str,
    what: What,
    traces: [Option<Trace<'a>>; 2],
    /// Traces that are unused until the end, as if they were forgotten.
    forgotten: Vec<Trace<'a>>,
}

impl<'a> World<'a> {
    fn step(&mut self, (n, op): Step) {
        match (self.traces[n].take(), op) {
            (None, Op::Start | Op::TakeOver) => self.traces[n] = self.start(op),
            (Some(trace), op) => self.traces[n] = self.perform(trace, op),
            (None, _) => {}
        }
    }

    fn start(&self, op: Op) -> Option<Trace<'a>> {
        let machine = self.machine;
        let cpuid = |leaf, subleaf| machine.cpuid(leaf, subleaf);
        let unit: DsUnit<Registers> = match op {
            Op::TakeOver => DsUnit::take_over(cpuid, machine.registers()).unwrap().0,
            _ => DsUnit::detect(cpuid, machine.registers()).ok()?,
        };
        let area = machine.area(&unit, self.what);
        // Counters of a recording that is off are not taken over: the start is refused.
        let running = unit.start(&self.what.config(self.profile), area).ok()?;
        let (branches, samples) = (Collector::new(), Collector::new());
        Some(Trace { running, branches, samples, suspended: false, wanted: Vec::new() })
    }

    fn perform(&mut self, mut trace: Trace<'a>, op: Op) -> Option<Trace<'a>> {
        let Trace { running, branches, samples, .. } = &mut trace;
        match op {
            Op::Start | Op::TakeOver => {}
            Op::Drain => running.drain(branches, samples).unwrap(),
            Op::Suspend => running.suspend().unwrap(),
            Op::Resume => running.resume().unwrap(),
            Op::Interrupt => {
                self.machine.mask();
                let mut handler = Handler::new(Delivery::Nmi);
                self.machine.interrupt(&mut handler, &mut [&mut running.source(branches, samples)]);
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
        trace.suspended = op == Op::Suspend || op != Op::Resume && trace.suspended;
        Some(trace)
    }

    /// Stops a recording, and checks that its losses are reported.
    fn stop(&self, trace: Trace<'a>) {
        let Trace { running, mut branches, wanted, .. } = trace;
        let stopped = running.stop().map_err(|failed| failed.fault).unwrap();
        if self.what == CIRCULAR {
            // A drain only showed the content, which is still there.
            branches = Collector::new();
        }
        for chunk in stopped.records.chunks(Half::Bts) {
            match chunk {
                Chunk::Bytes(bytes) => assert_eq!(branches.bytes(bytes), bytes.len()),
                Chunk::Gap(gap) => assert!(branches.gap(gap)),
            }
        }
        let told = *stopped.records.loss(Half::Bts) != Loss::NONE;
        let found = targets(&branches);
        let all = self.what.branches().is_none() || found == wanted;
        assert!(told || all, "{found:x?} of {wanted:x?}, and nothing is told");
    }

    /// Runs the program for a while.
    fn run(&mut self) {
        let before = self.machine.executed().len();
        self.machine.run(3);
        for trace in self.traces.iter_mut().flatten().filter(|trace| !trace.suspended) {
            trace.wanted.extend(&self.machine.executed()[before..]);
        }
    }

    fn check(&self) {
        assert_eq!(*self.machine.ram.strays.borrow(), [], "the processor writes to freed memory");
        let stores = self.machine.msr(0x1d9) & 0xc0 == 0xc0 || self.machine.msr(0x3f1) != 0;
        let area = self.machine.msr(0x600);
        assert!(!stores || self.machine.ram.is_live(area), "what is on names freed memory: {area:#x}");
    }
}

/// Performs the steps on a new machine, and then ends the rest.
fn live(profile: &'static str, what: What, steps: &[Step]) {
    let machine = Machine::with_memory(profile, IntelSettings::default(), 1 << 20);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let traces = [None, None];
        let mut world = World { machine: &machine, profile, what, traces, forgotten: Vec::new() };
        for &step in steps.iter().chain(&[(0, Op::Stop), (1, Op::Stop)]) {
            world.step(step);
            world.check();
            world.run();
            world.check();
        }
        world.forgotten.clear();
        world.check();
    }));
    if let Err(panic) = outcome {
        eprintln!("{profile} {what:?}: {steps:?}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn two_recordings_in_all_orders_of_two_steps_and_in_long_random_ones() {
    let all: Vec<Step> = [0, 1].into_iter().flat_map(|n| OPS.map(|op| (n, op))).collect();
    for (profile, what) in [("skylake", What::Both), ("core2", What::Both), ("skylake", CIRCULAR)] {
        for before in [&[(0, Op::Start)][..], &[(0, Op::Start), (1, Op::TakeOver)]] {
            for one in &all {
                for two in &all {
                    live(profile, what, &[before, &[*one, *two]].concat());
                }
            }
        }
        let mut random = 1_u64;
        for _ in 0..300 {
            let steps: Vec<Step> = (0..16)
                .map(|_| {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    all[(random >> 33) as usize % all.len()]
                })
                .collect();
            live(profile, what, &steps);
        }
    }
}
