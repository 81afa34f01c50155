//! Intel PT: the kernel and the program are traced; a second trace waits for the switch.

use super::{Shared, Take};
use crate::common::xsave::Saved;
use crate::common::{Collector, Machine, synced, tips};
use crate::{Event, Step, Unit};
use pugmark_kernel::intel::pt::{
    Buffer, Layout, Mode, PtConfig, PtRunning, PtState, PtTask, PtUnit, RegionSize, Trace, XsavedMsr,
};
use pugmark_kernel::lapic::LocalApic;
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::Pmi;
use pugmark_kernel::slot::{Interrupt, PauseGate, Traced};
use pugmark_model::PhysMemory;
use pugmark_model::intel::IntelSettings;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PtKind {
    pub(crate) profile: &'static str,
    pub(crate) mode: Mode,
    /// True if XSAVES saves the registers.
    pub(crate) saved: bool,
}

pub(crate) struct Tracer {
    running: PtRunning<Saved, Shared>,
    sink: Take,
    waiting: Option<PtTask<Shared>>,
    /// The stretches that begin with a PSB without a loss before them.
    joints: Vec<usize>,
    lost: Loss,
}

impl Traced for Tracer {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [&mut self.running.source(&mut self.sink)])
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.running.resume().map(|_| ())
    }
}

/// The maximum number of regions of a buffer.
const REGIONS: u32 = 4;

impl PtKind {
    fn buffer(self, machine: &Machine) -> Result<Buffer<Shared>, String> {
        // A ring that should be overwritten is small.
        let regions = if self.mode == Mode::Overwrite { 2 } else { REGIONS };
        let layout = Layout::topa(RegionSize::K4, regions);
        let memory = Shared(machine.ram.clone());
        Buffer::allocate(memory, &machine.capabilities(), layout, self.mode)
            .map_err(|error| error.to_string())
    }
}

impl Unit for PtKind {
    type Tracer = Tracer;

    const STEPS: &'static [Step] = &[
        Step::Start,
        Step::Drain,
        Step::Resume,
        Step::Switch,
        Step::Pause,
        Step::GoOn,
        Step::Handler,
        Step::Stop,
    ];
    const EVENTS: &'static [Event] = &[Event::Nmi, Event::Pmi, Event::Fault, Event::Error, Event::Memory];

    /// Returns true for a stop by XSAVES, which raises no #GP.
    fn never_faults(self, step: Step, event: Event) -> bool {
        self.saved && step == Step::Stop && event == Event::Fault
    }

    fn machine(self) -> Machine {
        let make = if self.saved { Machine::with_pt_state } else { Machine::with_memory };
        let machine = make(self.profile, IntelSettings::default(), 512 << 10);
        machine.jump_far();
        machine
    }

    fn start(self, machine: &Machine, gate: &'static PauseGate) -> Result<Tracer, String> {
        let config = PtConfig::new().os(true).user(true);
        let cpuid = |leaf, subleaf| machine.cpuid(leaf, subleaf);
        let registers = XsavedMsr::new(cpuid, machine.registers(), machine.registers());
        let unit = PtUnit::detect(cpuid, registers).map_err(|absent| absent.to_string())?.gated_by(gate);
        let buffer = self.buffer(machine)?;
        let task = PtTask::new(unit.capabilities(), &config, self.buffer(machine)?)
            .map_err(|(_, refusal)| refusal.to_string())?;
        let running = unit.start(&config, buffer).map_err(|failed| failed.error().to_string())?;
        let sink = Take::new(self.mode == Mode::Overwrite);
        Ok(Tracer { running, sink, waiting: Some(task), joints: Vec::new(), lost: Loss::NONE })
    }

    fn step(self, tracer: &mut Tracer, step: Step) -> Result<(), GeneralProtection> {
        match step {
            Step::Drain => tracer.running.drain(&mut tracer.sink).map(|_| ()),
            Step::Resume => {
                tracer.running.suspend()?;
                tracer.running.wake().map(|_| ())
            }
            Step::Switch => {
                let Some(coming) = tracer.waiting.take() else { return Ok(()) };
                match tracer.running.switch(coming) {
                    Ok(left) => {
                        tracer.lost = *left.loss();
                        let collector = &mut tracer.sink.collector;
                        left.into_trace().drain_to(collector);
                        tracer.joints.push(collector.stretches.len());
                        collector.stretches.push(Vec::new());
                        Ok(())
                    }
                    Err(failed) => {
                        tracer.waiting = Some(failed.coming);
                        Err(match failed.error {
                            pugmark_kernel::lifecycle::StartError::Fault(fault) => fault,
                            error => panic!("{error}"),
                        })
                    }
                }
            }
            _ => unreachable!("not a step of the trace"),
        }
    }

    fn mend(self, tracer: &mut Tracer) -> Result<(), GeneralProtection> {
        // Twice, because an error may be noticed only now.
        for _ in 0..2 {
            let state = tracer.running.drain(&mut tracer.sink)?;
            match state {
                PtState::Failed(_) => _ = tracer.running.go_on()?,
                PtState::Suspended => _ = tracer.running.wake()?,
                _ => {}
            }
        }
        assert_eq!(tracer.running.state(), PtState::Tracing);
        Ok(())
    }

    fn damage(self, machine: &Machine, wrong: bool) {
        let mut memory = &*machine.ram;
        for block in machine.ram.tables() {
            for n in 0..u64::from(REGIONS) {
                let mut entry = [0; 8];
                if PhysMemory::read(&memory, block + 8 * n, &mut entry) {
                    // Bit 1 is reserved.
                    entry[0] = entry[0] & !2 | u8::from(wrong) << 1;
                    assert!(PhysMemory::write(&mut memory, block + 8 * n, &entry));
                }
            }
        }
    }

    fn stop(
        self,
        tracer: Tracer,
        executed: &dyn Fn() -> Vec<u64>,
        whole: bool,
        what: &str,
    ) -> Result<(), (Tracer, GeneralProtection)> {
        let Tracer { running, sink, waiting, joints, lost } = tracer;
        let mut stopped = match running.stop() {
            Ok(stopped) => stopped,
            Err(failed) => {
                return Err((Tracer { running: failed.running, sink, waiting, joints, lost }, failed.fault));
            }
        };
        let mut collector = sink.collector;
        let trace: &mut Trace<Shared> = &mut stopped.trace;
        assert!(trace.drain_to(&mut collector));
        let told = stopped.loss.is_none() && lost.is_none();
        // If the driver chains the regions, there is no room after the PMI of one; the loss is reported.
        let loses = self.mode == Mode::Overwrite || self.profile == "broadwell";
        assert!(!whole || told || loses, "{what}: {}; {lost}", stopped.loss);
        check(&collector, &joints, &executed(), what);
        Ok(())
    }
}

/// Checks that the stretches have all jumps, except at gaps.
fn check(collector: &Collector, joints: &[usize], executed: &[u64], what: &str) {
    let user = |target: &u64| *target >> 47 == 0;
    let mut gaps = collector.gaps.iter();
    // The possible numbers of jumps so far. After a gap there are several, because the program comes to the same places
    // again.
    let mut places = vec![0];
    let mut missing = false;
    for (n, stretch) in collector.stretches.iter().enumerate() {
        let mut bytes = &stretch[..];
        if n > 0 && !joints.contains(&n) {
            let gap = gaps.next().expect("a gap before each stretch");
            if matches!(gap, Gap::Wrap(_)) && !bytes.is_empty() {
                bytes = synced(bytes);
            }
            missing = true;
        }
        let mut targets: Vec<u64> = tips(bytes).into_iter().filter(user).collect();
        // A return from an interrupt has the target of the last jump.
        targets.dedup();
        let Some(&first) = targets.first() else { continue };
        let follows = |from: usize| {
            let returned = from.checked_sub(1).map(|last| executed[last]).is_none_or(|last| last == first);
            let new = &targets[usize::from(returned && executed.get(from) != Some(&first))..];
            executed[from..].starts_with(new).then_some(from + new.len())
        };
        places = match missing {
            false => places.into_iter().filter_map(follows).collect(),
            true => (places[0]..=executed.len()).filter_map(follows).collect(),
        };
        assert!(!places.is_empty(), "{what}: what stretch {n} has was not executed, or something is missing");
        missing = false;
    }
    assert!(missing || places.contains(&executed.len()), "{what}: jumps are missing at the end: {places:?}");
}
