//! Traces that are paused and resumed: by handlers between any two accesses of the driver, before they start, while
//! they are off for another reason.

mod common;

use common::{Collector, Machine, Ram, Registers, assert_same, tips, user_code};
use pugmark_decoder_core::packet::{Packet, Packets};
use pugmark_kernel::intel::pt::{
    Buffer, Layout, Mode, PtConfig, PtState, PtStopped, PtTask, PtTracer, RegionSize,
};
use pugmark_kernel::lapic::{Delivery, Vector};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::Msr;
use pugmark_kernel::pmi::{Abandoned, Handler, Pmi};
use pugmark_kernel::slot::Slot;
use pugmark_model::intel::IntelSettings;

const FULL: Mode = Mode::StopWhenFull { spare: 1 };

type Held = PtTracer<Registers, &'static Ram, Collector>;
type Processor = Box<dyn Fn() -> (Registers, Registers)>;
type HeldSlot = Slot<Held, Processor>;
type Memory = Buffer<&'static Ram>;
type Stopped = PtStopped<Registers, &'static Ram>;

const RTIT_CTL: u32 = 0x570;

/// A processor and its slot, which live forever, as in a kernel.
#[derive(Clone, Copy)]
struct Cpu {
    machine: &'static Machine,
    slot: &'static HeldSlot,
}

impl Cpu {
    fn new(profile: &str, delivery: Delivery) -> Self {
        let machine: &Machine = Box::leak(Box::new(Machine::new(profile, IntelSettings::default())));
        machine.disarm();
        let processor: Processor = Box::new(|| (machine.registers(), machine.registers()));
        // SAFETY: one thread uses it, with one machine.
        let slot = Box::leak(Box::new(unsafe { Slot::new(Handler::new(delivery), processor) }));
        Self { machine, slot }
    }

    fn buffer(self, mode: Mode) -> Memory {
        self.machine.buffer(Layout::topa(RegionSize::K4, 8), mode)
    }

    fn start(self, config: &PtConfig, mode: Mode) {
        self.start_into(config, self.buffer(mode));
    }

    fn start_into(self, config: &PtConfig, buffer: Memory) {
        let unit = self.machine.unit().gated_by(self.slot.gate());
        self.slot.start(|| PtTracer::start(unit, config, buffer, Collector::new())).unwrap();
    }

    fn with<R>(self, work: impl FnOnce(&mut Held) -> R) -> R {
        self.slot.with(work).unwrap()
    }

    fn state(self) -> PtState {
        self.with(|tracer| tracer.running.state())
    }

    /// Runs, and serves each PMI.
    fn run(self, jumps: usize) {
        for _ in 0..jumps {
            if self.machine.jump().is_some() {
                self.machine.handle(|| self.slot.interrupt(None)).unwrap();
            }
        }
    }

    fn stop(self) -> (Stopped, Collector) {
        self.slot.stop(|tracer, _| tracer.stop()).unwrap().unwrap()
    }

    /// Returns whether TraceEn is set.
    fn is_on(self) -> bool {
        self.machine.msr(RTIT_CTL) & 1 != 0
    }

    /// Pauses or resumes.
    fn set(self, paused: bool) {
        if paused { self.slot.pause().unwrap() } else { assert_eq!(self.slot.resume(), Ok(true)) }
    }
}

fn nmi(profile: &str) -> Cpu {
    Cpu::new(profile, Delivery::Nmi)
}

/// Runs `work` and returns its number of accesses.
fn accesses(cpu: Cpu, work: impl FnOnce()) -> u32 {
    let before = cpu.machine.accesses();
    work();
    cpu.machine.accesses() - before
}

#[test]
fn a_pause_takes_two_accesses_and_a_resume_four_and_no_psb() {
    // A resume checks that the registers are still the trace's. If branch records exclude PT, it reads IA32_DEBUGCTL.
    for (profile, exclusive) in [("skylake", 1), ("sapphire-rapids", 0)] {
        let cpu = nmi(profile);
        cpu.start(&user_code(), FULL);
        cpu.run(100);
        let before = cpu.machine.jumps().len();
        let expected = [(true, 2), (true, 1), (false, 4 + exclusive), (false, 2)];
        for (paused, cost) in expected {
            assert_eq!(accesses(cpu, || cpu.set(paused)), cost, "{profile}, pause: {paused}");
            assert_eq!(cpu.is_on(), !paused);
            cpu.run(10);
        }
        assert_eq!((before, cpu.machine.jumps().len(), cpu.machine.executed().len()), (100, 120, 140));
        assert_eq!(cpu.slot.gate().pauses(), 1);
        let (stopped, collector) = cpu.stop();
        assert_eq!(stopped.loss, Loss::NONE);
        assert_same(&tips(collector.whole()), &cpu.machine.jumps(), profile);
        let psbs = Packets::new(collector.whole()).filter(|packet| matches!(packet, Ok((_, Packet::Psb))));
        assert_eq!(psbs.count(), 1, "the one at the start");
    }
}

#[test]
fn each_pause_is_in_the_trace_where_it_was() {
    let cpu = nmi("skylake");
    cpu.start(&user_code().os(true), FULL);
    let mut expected = Vec::new();
    for n in 1..50 {
        cpu.run(n);
        expected.push(n);
        cpu.set(true);
        cpu.run(7);
        cpu.set(false);
    }
    let (stopped, collector) = cpu.stop();
    assert_eq!(stopped.loss, Loss::NONE);
    // The jumps between a TIP.PGE and the TIP.PGD at the pause.
    let (mut stretches, mut jumps) = (Vec::new(), 0);
    for packet in Packets::new(collector.whole()) {
        match packet.unwrap().1 {
            Packet::Tip(_) => jumps += 1,
            Packet::TipPgd(_) => stretches.push(core::mem::take(&mut jumps)),
            _ => {}
        }
    }
    // In the kernel nothing jumps, but each return to the program is a TIP.
    let returns = |n: usize| n > 0;
    let counted: Vec<usize> = stretches.iter().map(|&n| n - usize::from(returns(n))).collect();
    assert_eq!(counted[..expected.len()], expected);
}

#[test]
fn a_trace_starts_paused() {
    for mode in [FULL, Mode::Circular { interrupt_every: 2 }, Mode::Overwrite] {
        let cpu = nmi("skylake");
        assert_eq!(accesses(cpu, || cpu.set(true)), 0, "the unit is not the driver's");
        let accesses_paused = accesses(cpu, || cpu.start(&user_code(), mode));
        let other = nmi("skylake");
        let accesses_on = accesses(other, || other.start(&user_code(), mode));
        assert!(accesses_paused < accesses_on, "TraceEn was set and cleared again: {accesses_paused}");
        assert_eq!((cpu.state(), cpu.is_on()), (PtState::Paused, false));
        cpu.run(100);
        cpu.set(false);
        assert_eq!((cpu.state(), cpu.is_on()), (PtState::Tracing, true));
        cpu.run(50);
        let (stopped, collector) = cpu.stop();
        assert_eq!((stopped.loss, cpu.machine.jumps().len()), (Loss::NONE, 50));
        assert!(collector.whole().starts_with(&[0x02, 0x82]), "with a PSB");
        assert_same(&tips(collector.whole()), &cpu.machine.jumps(), "from the resume on");
    }
}

#[test]
fn a_pmi_finds_a_paused_trace_serves_it_and_leaves_it_paused() {
    let cpu = Cpu::new("skylake", Delivery::Fixed(Vector::new(0x40).unwrap()));
    cpu.start(&user_code(), FULL);
    let mut pmis = 0;
    while pmis < 5 {
        if cpu.machine.jump().is_none() {
            continue;
        }
        // The event comes before the PMI is served.
        cpu.set(true);
        assert_eq!(cpu.slot.interrupt(None), Ok(Pmi::Served));
        assert_eq!((cpu.state(), cpu.is_on()), (PtState::Paused, false));
        assert_eq!(cpu.with(|tracer| tracer.running.undrained()), 0, "it was drained");
        cpu.run(100);
        cpu.set(false);
        assert!(cpu.is_on());
        pmis += 1;
    }
    let (stopped, collector) = cpu.stop();
    assert_eq!((stopped.loss, cpu.slot.handler(|handler| handler.counts().served)), (Loss::NONE, Ok(5)));
    assert_same(&tips(collector.whole()), &cpu.machine.jumps(), "what ran while it was not paused");
    assert_eq!(cpu.machine.executed().len(), cpu.machine.jumps().len() + 500);
}

#[test]
fn a_trace_that_is_off_for_another_reason_stays_off_whatever_the_gate_does() {
    // Suspended: not even the pause reads a register.
    let cpu = nmi("skylake");
    cpu.start(&user_code(), FULL);
    cpu.with(|tracer| tracer.running.suspend()).unwrap();
    assert_eq!(accesses(cpu, || cpu.set(true)), 0);
    assert_eq!(cpu.state(), PtState::Suspended);
    assert_eq!(accesses(cpu, || cpu.set(false)), 0);
    assert!(!cpu.is_on());
    cpu.set(true);
    assert_eq!(cpu.with(|tracer| tracer.running.wake()), Ok(PtState::Paused));
    assert!(!cpu.is_on());
    cpu.set(false);
    assert!(cpu.is_on());
    let (stopped, _) = cpu.stop();
    assert_eq!(stopped.loss, Loss::NONE);

    // Full, and nobody drains.
    let cpu = nmi("skylake");
    cpu.start(&user_code(), FULL);
    cpu.with(|tracer| tracer.sink.appetite = Some(0));
    while cpu.state() != PtState::Full {
        cpu.run(1000);
    }
    cpu.set(true);
    cpu.set(false);
    assert_eq!((cpu.state(), cpu.is_on()), (PtState::Full, false));

    // Stopped by a range: TraceEn is set, and the unit stays off until the driver has seen it.
    let cpu = nmi("skylake");
    cpu.start(&user_code().trace_stop(0x40_0200, 0x40_02ff), FULL);
    cpu.run(100);
    cpu.set(true);
    cpu.set(false);
    let traced = cpu.machine.jumps().len();
    let drained = cpu.with(|tracer| tracer.running.drain(&mut tracer.sink));
    assert_eq!(drained, Ok(PtState::TraceStopped));
    let (stopped, collector) = cpu.stop();
    assert_eq!((stopped.loss.trace_stop, stopped.loss.is_none()), (1, true));
    assert!(tips(collector.whole()).len() < traced);
}

#[test]
fn a_recorder_that_came_while_it_was_paused_keeps_it_off() {
    let cpu = nmi("skylake");
    cpu.start(&user_code(), FULL);
    cpu.run(20);
    cpu.set(true);
    // IA32_DEBUGCTL.LBR.
    // SAFETY: the registers stand for no hardware.
    unsafe { cpu.machine.registers().wrmsr(0x1d9, 1) }.unwrap();
    cpu.set(false);
    assert_eq!((cpu.state(), cpu.is_on()), (PtState::Excluded, false));
    // SAFETY: as above.
    unsafe { cpu.machine.registers().wrmsr(0x1d9, 0) }.unwrap();
    assert_eq!(cpu.with(|tracer| tracer.running.go_on()), Ok(PtState::Tracing));
    cpu.run(20);
    let (stopped, collector) = cpu.stop();
    assert_eq!((stopped.loss.excluded, &collector.gaps[..]), (1, &[Gap::Excluded][..]));
    let targets: Vec<u64> = collector.stretches.iter().flat_map(|bytes| tips(bytes)).collect();
    assert_same(&targets, &cpu.machine.jumps(), "before and after");
}

#[test]
fn a_pause_or_resume_that_faults_says_so_and_the_next_one_works() {
    for (n, fails) in [(0, true), (1, true), (2, false)] {
        let cpu = nmi("skylake");
        cpu.start(&user_code(), FULL);
        cpu.run(20);
        cpu.machine.fault_in(n);
        assert_eq!(cpu.slot.pause().is_err(), fails);
        cpu.machine.settle();
        // TraceEn may be set, but once the driver has turned it off the next time, it stays off.
        assert_eq!(cpu.with(|tracer| tracer.running.drain(&mut tracer.sink)), Ok(PtState::Paused));
        assert!(!cpu.is_on());
        cpu.set(false);
        cpu.run(20);
        let (stopped, collector) = cpu.stop();
        assert_eq!(stopped.loss, Loss::NONE);
        assert_same(&tips(collector.whole()), &cpu.machine.jumps(), "all that ran while it was on");
    }
    let faults = [(0, "Abandoned"), (1, "Tracing"), (2, "Abandoned"), (3, "Abandoned"), (4, "Abandoned")];
    for (n, state) in faults.into_iter().chain([(5, "Tracing")]) {
        let cpu = nmi("skylake");
        cpu.start(&user_code(), FULL);
        cpu.run(20);
        cpu.set(true);
        cpu.machine.fault_in(n);
        let resumed = cpu.slot.resume();
        cpu.machine.settle();
        match state {
            // A register that cannot be read does not show that another recorder is on.
            "Tracing" => assert_eq!((resumed, cpu.state()), (Ok(true), PtState::Tracing)),
            _ => {
                let fault = resumed.unwrap_err();
                assert_eq!(cpu.state(), PtState::Abandoned(Abandoned::Fault(fault)));
                assert_eq!(cpu.with(|tracer| tracer.running.go_on()), Ok(PtState::Tracing));
            }
        }
        cpu.run(20);
        let (stopped, collector) = cpu.stop();
        assert_eq!(stopped.loss.abandoned, u64::from(state == "Abandoned"), "{n}");
        let targets: Vec<u64> = collector.stretches.iter().flat_map(|bytes| tips(bytes)).collect();
        assert_same(&targets, &cpu.machine.jumps(), "all that ran while it was on");
    }
}

/// The operation of the kernel that a handler interrupts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Pause,
    Resume,
    Drain,
    GoOn,
    SleepAndWake,
    Switch,
    /// A PMI by a vector, whose handler an NMI can interrupt.
    Pmi,
    Restart,
    Hold,
}

/// The action of a handler between two accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Pause,
    Resume,
    PauseResume,
    ResumePause,
    /// A PMI.
    Pmi,
}

impl Event {
    /// Returns true if the trace is paused afterwards, false if resumed, `None` if unchanged.
    fn wish(self) -> Option<bool> {
        match self {
            Self::Pause | Self::ResumePause => Some(true),
            Self::Resume | Self::PauseResume => Some(false),
            Self::Pmi => None,
        }
    }

    fn happen(self, cpu: Cpu) {
        let pause = || {
            cpu.slot.pause().unwrap();
            assert!(!cpu.is_on(), "at once");
        };
        cpu.machine.interrupt_driver(0, || match self {
            Self::Pause => pause(),
            Self::Resume => _ = cpu.slot.resume().unwrap(),
            Self::PauseResume => {
                pause();
                cpu.slot.resume().unwrap();
            }
            Self::ResumePause => {
                cpu.slot.resume().unwrap();
                pause();
            }
            Self::Pmi => {
                cpu.machine.mask();
                cpu.slot.interrupt(None).unwrap();
            }
        });
    }
}

impl Op {
    /// Performs the operation. Returns the buffer of the trace that does not run then.
    fn perform(self, cpu: Cpu, waiting: PtTask<&'static Ram>) -> Memory {
        let drain = |tracer: &mut Held| tracer.running.drain(&mut tracer.sink).map(|_| ()).unwrap();
        match self {
            Self::Pause => cpu.slot.pause().unwrap(),
            Self::Resume => assert_eq!(cpu.slot.resume(), Ok(true)),
            Self::Drain => cpu.with(drain),
            Self::GoOn => cpu.with(|tracer| tracer.running.go_on()).map(|_| ()).unwrap(),
            Self::SleepAndWake => cpu.with(|tracer| {
                tracer.running.suspend().unwrap();
                tracer.running.wake().unwrap();
            }),
            Self::Switch => {
                return cpu.with(|tracer| {
                    let mut left = tracer.running.switch(waiting).unwrap().into_trace();
                    assert!(left.drain_to(&mut tracer.sink));
                    left.into_buffer()
                });
            }
            Self::Pmi => {
                cpu.machine.mask();
                assert!(cpu.slot.interrupt(None).is_ok());
            }
            Self::Restart => {
                let (stopped, sink) = cpu.stop();
                assert_eq!(stopped.loss, Loss::NONE);
                let (unit, buffer) = (stopped.unit, stopped.trace.into_buffer());
                cpu.slot.start(|| PtTracer::start(unit, &user_code(), buffer, sink)).unwrap();
            }
            Self::Hold => cpu.with(|tracer| {
                drain(tracer);
                // A resume waits for the release; a pause does not.
                assert!(!cpu.is_on() || !cpu.slot.gate().is_closed());
                drain(tracer);
            }),
        }
        waiting.into_trace().into_buffer()
    }
}

/// Runs a trace in which `op` is performed; one handler comes before access `first` of it, and another before access
/// `second` after that. Returns whether all handlers have come.
fn live(
    (cpu, memory): (Cpu, &mut Vec<Memory>),
    op: Op,
    paused: bool,
    first: Option<(u32, Event)>,
    second: Option<(u32, Event)>,
) -> bool {
    let what = format!("{op:?}, paused: {paused}, {first:?}, {second:?}");
    let machine = cpu.machine;
    machine.forget_jumps();
    cpu.slot.resume().unwrap();
    cpu.start_into(&user_code(), memory.pop().unwrap());
    let waiting = PtTask::new(&machine.capabilities(), &user_code(), memory.pop().unwrap()).unwrap();
    cpu.run(10);
    cpu.set(paused);
    if let Some((n, event)) = first {
        machine.at_access(n, move || {
            event.happen(cpu);
            if let Some((m, event)) = second {
                machine.at_access(m, move || event.happen(cpu));
            }
        });
    }
    memory.push(machine.handle(|| op.perform(cpu, waiting)));
    let happened = !machine.cancel();

    let own = match op {
        Op::Pause => Some(true),
        Op::Resume => Some(false),
        _ => None,
    };
    let wishes = [first, second].map(|event| event.and_then(|(_, event)| event.wish()));
    if happened {
        let wish = wishes[1].or(wishes[0]).or(own).unwrap_or(paused);
        assert_eq!((cpu.slot.gate().is_closed(), cpu.is_on()), (wish, !wish), "{what}");
        assert_eq!(cpu.state(), if wish { PtState::Paused } else { PtState::Tracing }, "{what}");
        let before = machine.jumps().len();
        cpu.run(10);
        assert_eq!(machine.jumps().len() - before, if wish { 0 } else { 10 }, "{what}");
    }
    cpu.slot.resume().unwrap();
    cpu.run(10);
    let (stopped, collector) = cpu.stop();
    assert_eq!(stopped.loss, Loss::NONE, "{what}");
    assert_same(&tips(collector.whole()), &machine.jumps(), &what);
    memory.push(stopped.trace.into_buffer());
    happened
}

#[test]
fn handlers_that_pause_and_resume_come_between_any_two_accesses_and_the_last_one_has_its_way() {
    use Event::{Pause, PauseResume, Resume, ResumePause};
    let ops = [
        Op::Pause,
        Op::Resume,
        Op::Drain,
        Op::GoOn,
        Op::SleepAndWake,
        Op::Switch,
        Op::Pmi,
        Op::Restart,
        Op::Hold,
    ];
    let mut lives = 0;
    for (profile, op) in ["skylake", "sapphire-rapids"].iter().flat_map(|profile| ops.map(|op| (profile, op)))
    {
        let vector = Delivery::Fixed(Vector::new(0x40).unwrap());
        let cpu = Cpu::new(profile, if op == Op::Pmi { vector } else { Delivery::Nmi });
        let mut memory = vec![cpu.buffer(FULL), cpu.buffer(FULL)];
        let events = match op {
            // No NMI is a PMI there.
            Op::Pmi => &[Pause, Resume, PauseResume, ResumePause][..],
            _ => &[Pause, Resume, PauseResume, ResumePause, Event::Pmi][..],
        };
        for paused in [false, true] {
            assert!(live((cpu, &mut memory), op, paused, None, None));
            for &event in events {
                for n in 0.. {
                    if !live((cpu, &mut memory), op, paused, Some((n, event)), None) {
                        assert!(n > 0, "{op:?} has accesses");
                        break;
                    }
                    lives += 1;
                    for &second in events {
                        let mut ms = 0..;
                        lives += ms
                            .by_ref()
                            .take_while(|&m| {
                                live((cpu, &mut memory), op, paused, Some((n, event)), Some((m, second)))
                            })
                            .count();
                    }
                }
            }
        }
    }
    println!("{lives} interleavings");
    assert!(lives > 10_000, "{lives}");
}
