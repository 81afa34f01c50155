//! An event happens before each access of a register in turn, in each step of a recording's lifetime: an NMI of another
//! cause, a PMI, #GP, an operational error, or a failed allocation. After the event the recording runs or is stopped,
//! as documented; memory is returned; every loss is reported; and the next recording works.

mod campaign_units;
mod common;

use campaign_units::{PtKind, StoreKind};
use common::Machine;
use common::store::{CIRCULAR, INTERRUPT, What};
use pugmark_kernel::intel::pt::Mode;
use pugmark_kernel::lapic::{Delivery, LocalApic};
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_kernel::slot::{PauseGate, Slot, Traced};
use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;

/// A step of a recording's lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Start,
    Drain,
    /// Off and on again.
    Resume,
    /// Another trace takes the place of this one.
    Switch,
    /// Paused by the slot, and resumed when the step is over.
    Pause,
    /// Resumed by the slot, after a pause.
    GoOn,
    /// The handler serves a PMI, or an NMI if the recording requests none.
    Handler,
    Stop,
}

/// The event in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// An NMI that is not a PMI.
    Nmi,
    /// A PMI. If the recording is on and records the kernel, an NMI's handler fills the buffer; otherwise the PMI was
    /// in flight.
    Pmi,
    /// The access raises #GP.
    Fault,
    /// Tables in memory are wrong until the step is over: the processor reports an operational error when it reads
    /// them.
    Error,
    /// An allocation fails.
    Memory,
}

/// A unit and its recording.
trait Unit: Copy + Debug + 'static {
    type Tracer: Traced + 'static;

    const STEPS: &'static [Step];
    const EVENTS: &'static [Event];

    /// Returns true if the step has no access that could raise the event.
    fn never_faults(self, _: Step, _: Event) -> bool {
        false
    }

    fn machine(self) -> Machine;
    /// Starts a recording that obeys the gate.
    fn start(self, machine: &Machine, gate: &'static PauseGate) -> Result<Self::Tracer, String>;
    /// Drains, resumes or switches.
    fn step(self, tracer: &mut Self::Tracer, step: Step) -> Result<(), GeneralProtection>;
    /// Takes the documented steps after a fault or an error, so that the recording resumes.
    fn mend(self, tracer: &mut Self::Tracer) -> Result<(), GeneralProtection>;
    /// Damages the tables, or repairs them.
    fn damage(self, machine: &Machine, wrong: bool);
    /// Stops, and compares the recording with these jumps. `whole`: nothing may be missing.
    fn stop(
        self,
        tracer: Self::Tracer,
        executed: &dyn Fn() -> Vec<u64>,
        whole: bool,
        what: &str,
    ) -> Result<(), (Self::Tracer, GeneralProtection)>;
}

type Shared<U> = Rc<Slot<<U as Unit>::Tracer, Box<dyn Fn() -> (common::Registers, common::Registers)>>>;

/// One recording, during whose lifetime an event happens.
struct Life<U: Unit> {
    unit: U,
    machine: Machine,
    slot: Shared<U>,
    /// True if an NMI came while NMIs were blocked.
    latched: Rc<Cell<bool>>,
    what: String,
}

impl<U: Unit> Life<U> {
    fn new(unit: U, what: String) -> Self {
        let machine = unit.machine();
        machine.disarm();
        let registers = machine.registers();
        let processor: Box<dyn Fn() -> _> = Box::new(move || (registers.clone(), registers.clone()));
        // SAFETY: one thread uses it, with one machine.
        let slot = Rc::new(unsafe { Slot::new(Handler::new(Delivery::Nmi), processor) });
        Self { unit, machine, slot, latched: Rc::default(), what }
    }

    /// Lets the event happen before access `n` of the step that follows.
    fn provoke(&self, step: Step, event: Event, n: u32) {
        let Self { unit, machine, slot, latched, .. } = self;
        let (unit, here) = (*unit, machine.clone());
        match event {
            Event::Fault => machine.fault_in(n),
            Event::Memory => machine.ram.fail_at.set(Some(machine.ram.allocations.get() + n)),
            Event::Error => machine.at_access(n, move || unit.damage(&here, true)),
            // No other NMI arrives in the handler of an NMI.
            Event::Nmi | Event::Pmi if step == Step::Handler => {
                let latched = latched.clone();
                machine.at_access(n, move || latched.set(true));
            }
            Event::Nmi => {
                let (slot, what) = (slot.clone(), self.what.clone());
                machine.at_access(n, move || {
                    let masked = here.registers().lvt_pc().unwrap().is_masked();
                    here.interrupt_driver(0, || {
                        let pmi = slot.interrupt(None).unwrap();
                        assert!(masked || pmi.may_be_anothers(), "{what}: {pmi:?} for somebody else's NMI");
                    });
                });
            }
            Event::Pmi => {
                let slot = slot.clone();
                machine.at_access(n, move || {
                    let serve = || _ = slot.interrupt(None).unwrap();
                    here.interrupt_driver(500, || ());
                    if !here.take_interrupt() {
                        here.mask();
                    }
                    here.interrupt_driver(0, serve);
                    while here.take_interrupt() {
                        here.interrupt_driver(0, serve);
                    }
                });
            }
        }
    }

    /// Ends [`Life::provoke`]. Returns whether the event has happened.
    fn settle(&self, event: Event) -> bool {
        let ram = &self.machine.ram;
        let happened = match event {
            Event::Memory => ram.fail_at.take().is_some_and(|fail_at| ram.allocations.get() > fail_at),
            _ => !self.machine.cancel(),
        };
        if event == Event::Error {
            self.unit.damage(&self.machine, false);
        }
        if self.latched.take() | self.machine.take_interrupt() {
            self.serve();
        }
        happened
    }

    fn serve(&self) -> Pmi {
        self.machine.handle(|| self.slot.interrupt(None)).unwrap()
    }

    /// Executes jumps, and serves each PMI.
    fn run(&self, jumps: usize) {
        for _ in 0..jumps {
            let mut pmi = self.machine.jump().is_some();
            while pmi {
                self.serve();
                pmi = self.machine.take_interrupt();
            }
        }
    }

    fn start(&self) -> Result<(), String> {
        // SAFETY: everything that obeys the gate is in the slot, and is dropped before the slot is.
        let gate = unsafe { &*Rc::as_ptr(&self.slot) }.gate();
        self.slot.start(|| self.unit.start(&self.machine, gate)).map_err(|refused| format!("{refused:?}"))
    }

    fn assert_off(&self) {
        let (machine, what) = (&self.machine, &self.what);
        assert!(!machine.is_tracing(), "{what}: it is on");
        assert_eq!(machine.ram.live(), 0, "{what}: memory was not given back");
        assert_eq!(
            *machine.ram.strays.borrow(),
            [],
            "{what}: memory was written that is not the recording's"
        );
    }

    /// Runs a whole lifetime. Returns whether the event has happened.
    fn live(&self, step: Step, event: Option<(Event, u32)>) -> bool {
        let Self { unit, machine, slot, what, .. } = self;
        let provoke = |now| {
            if let Some((event, n)) = event.filter(|_| now == step) {
                self.provoke(step, event, n);
            }
        };
        let mut happened = false;
        let mut settle = |now| {
            if let Some((event, _)) = event.filter(|_| now == step) {
                happened = self.settle(event);
            }
        };
        // These may leave the recording off, which is reported.
        let hurts = event.is_some_and(|(event, _)| matches!(event, Event::Fault | Event::Error));

        provoke(Step::Start);
        let started = self.start();
        settle(Step::Start);
        if let Err(refused) = started {
            assert!(event.is_some() && step == Step::Start, "{what}: {refused}");
            self.assert_off();
            self.start().unwrap_or_else(|refused| panic!("{what}: {refused} the second time"));
        }
        let first = machine.executed().len();
        let mend = || {
            // The program continues before the kernel mends anything, unless the kernel has turned the recording off
            // itself.
            if !matches!(step, Step::Resume | Step::Pause | Step::GoOn) {
                self.run(20);
            }
            slot.with(|tracer| unit.mend(tracer)).unwrap().unwrap();
        };
        if step == Step::Start && hurts {
            mend();
        }
        self.run(300);

        match step {
            Step::Start | Step::Stop => {}
            Step::Handler => {
                for _ in 0..1400 {
                    if machine.jump().is_some() {
                        break;
                    }
                }
                provoke(step);
                // An interrupt that cannot be served is noted.
                let _ = machine.handle(|| slot.interrupt(None));
                settle(step);
            }
            Step::Pause | Step::GoOn => {
                if step == Step::GoOn {
                    slot.pause().unwrap();
                    assert!(!machine.is_tracing(), "{what}");
                }
                provoke(step);
                let done = if step == Step::Pause { slot.pause() } else { slot.resume().map(|_| ()) };
                settle(step);
                assert!(done.is_ok() || hurts, "{what}: {done:?}");
                assert_eq!(slot.gate().is_closed(), step == Step::Pause, "{what}");
                assert!(hurts || machine.is_tracing() == (step == Step::GoOn), "{what}");
                slot.resume().unwrap();
            }
            Step::Drain | Step::Resume | Step::Switch => {
                provoke(step);
                let done = slot.with(|tracer| unit.step(tracer, step)).unwrap();
                settle(step);
                assert!(done.is_ok() || hurts, "{what}: {done:?}");
                if done.is_err() && step == Step::Switch {
                    // A switch that did not happen is tried again.
                    slot.with(|tracer| unit.step(tracer, step)).unwrap().unwrap();
                }
            }
        }
        if step != Step::Start && step != Step::Stop && hurts {
            mend();
        }
        self.run(300);

        let executed = || machine.executed()[first..].to_vec();
        machine.deliver();
        provoke(Step::Stop);
        let stopped = slot.stop(|tracer, _| unit.stop(tracer, &executed, !hurts, what)).unwrap();
        settle(Step::Stop);
        if let Err((tracer, fault)) = stopped {
            assert!(hurts && step == Step::Stop, "{what}: {fault}");
            assert!(unit.stop(tracer, &executed, !hurts, what).is_ok(), "{what}: it does not stop again");
        }
        self.assert_off();
        happened
    }
}

/// Tries each event at each access of each step. Returns the number of points.
fn campaign<U: Unit>(unit: U) -> u32 {
    let mut points = 0;
    for &step in U::STEPS {
        for &event in U::EVENTS {
            if event == Event::Memory && step != Step::Start {
                continue;
            }
            for n in 0.. {
                let life = Life::new(unit, format!("{unit:?}, {event:?} at {n} of {step:?}"));
                let happened = life.live(step, Some((event, n)));
                // The next recording has nothing of this one.
                life.live(step, None);
                if !happened {
                    assert!(n > 0 || unit.never_faults(step, event), "{}", life.what);
                    break;
                }
                points += 1;
            }
        }
    }
    println!("{unit:?}: {points} points tried, none bad");
    points
}

#[test]
fn intel_pt_survives_each_event_at_each_access() {
    let modes = [
        ("skylake", Mode::StopWhenFull { spare: 2 }),
        ("skylake", Mode::Circular { interrupt_every: 1 }),
        ("skylake", Mode::Overwrite),
        ("broadwell", Mode::StopWhenFull { spare: 2 }),
        ("sapphire-rapids", Mode::StopWhenFull { spare: 2 }),
    ];
    let kinds = modes.map(|(profile, mode)| PtKind { profile, mode, saved: false });
    let saved = PtKind { profile: "icelake", mode: Mode::StopWhenFull { spare: 2 }, saved: true };
    let points: u32 = kinds.into_iter().chain([saved]).map(campaign).sum();
    println!("Intel PT: {points} points tried, none bad");
    assert!(points > 1000, "{points}");
}

#[test]
fn the_debug_store_survives_each_event_at_each_access() {
    let kinds: [(&str, What); 7] = [
        ("prescott", INTERRUPT),
        ("core2", INTERRUPT),
        ("skylake", CIRCULAR),
        ("skylake", What::Samples),
        ("nehalem", What::Both),
        ("broadwell", What::Both),
        ("icelake", What::Both),
    ];
    let points: u32 = kinds.map(|(profile, what)| campaign(StoreKind { profile, what })).iter().sum();
    println!("debug store: {points} points tried, none bad");
    assert!(points > 1000, "{points}");
}
