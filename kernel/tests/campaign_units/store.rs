//! The debug store: branches, samples, both.

use super::{Shared, Take};
use crate::common::store::{CAPACITY, PERIOD, What, sampled, targets, targets_of};
use crate::common::{Collector, Machine, Registers, assert_same};
use crate::{Event, Step, Unit};
use pugmark_decoder_core::pebs::Format;
use pugmark_kernel::drain::{Chunk, Sink};
use pugmark_kernel::intel::ds::{BufferMode, DsArea, DsRunning, DsUnit, Half, Strictness};
use pugmark_kernel::lapic::LocalApic;
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::Pmi;
use pugmark_kernel::slot::{Interrupt, PauseGate, Traced};
use pugmark_model::intel::IntelSettings;

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreKind {
    pub(crate) profile: &'static str,
    pub(crate) what: What,
}

pub(crate) struct Tracer {
    running: DsRunning<Registers, Shared>,
    branches: Take,
    samples: Take,
    format: Option<Format>,
}

impl Traced for Tracer {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [&mut self.running.source(&mut self.branches, &mut self.samples)])
    }
}

impl Unit for StoreKind {
    type Tracer = Tracer;

    const STEPS: &'static [Step] = &[Step::Start, Step::Drain, Step::Resume, Step::Handler, Step::Stop];
    const EVENTS: &'static [Event] = &[Event::Nmi, Event::Pmi, Event::Fault, Event::Memory];

    fn machine(self) -> Machine {
        Machine::with_memory(self.profile, IntelSettings::default(), 512 << 10)
    }

    fn start(self, machine: &Machine, _: &'static PauseGate) -> Result<Tracer, String> {
        let detect = || DsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers());
        let unit = detect().map_err(|absent| {
            // The probe may have left its pattern, if the write that restores the register faulted.
            machine.cancel();
            machine.put_back(0x600);
            absent.to_string()
        })?;
        let format = unit.capabilities().pebs.ok().map(|pebs| pebs.format);
        let memory = Shared(machine.ram.clone());
        let area = DsArea::allocate(memory, unit.capabilities(), &self.what.plan(format), Strictness::Strict)
            .map_err(|error| error.to_string())?;
        let running =
            unit.start(&self.what.config(self.profile), area).map_err(|failed| failed.error().to_string())?;
        let leaves = self.what.branches() == Some(BufferMode::Circular);
        Ok(Tracer { running, branches: Take::new(leaves), samples: Take::new(leaves), format })
    }

    fn step(self, tracer: &mut Tracer, step: Step) -> Result<(), GeneralProtection> {
        match step {
            Step::Drain => tracer.running.drain(&mut tracer.branches, &mut tracer.samples),
            Step::Resume => {
                tracer.running.suspend()?;
                tracer.running.resume()
            }
            _ => unreachable!("not a step of the debug store"),
        }
    }

    fn mend(self, tracer: &mut Tracer) -> Result<(), GeneralProtection> {
        tracer.running.resume()?;
        // A buffer that has reached its threshold meanwhile waits for a drain.
        tracer.running.drain(&mut tracer.branches, &mut tracer.samples)
    }

    fn damage(self, _: &Machine, _: bool) {}

    fn stop(
        self,
        tracer: Tracer,
        executed: &dyn Fn() -> Vec<u64>,
        whole: bool,
        what: &str,
    ) -> Result<(), (Tracer, GeneralProtection)> {
        let Tracer { running, mut branches, mut samples, format } = tracer;
        let stopped = match running.stop() {
            Ok(stopped) => stopped,
            Err(failed) => {
                return Err((Tracer { running: failed.running, branches, samples, format }, failed.fault));
            }
        };
        (branches.leaves, samples.leaves) = (false, false);
        for (half, take) in [(Half::Bts, &mut branches), (Half::Pebs, &mut samples)] {
            for chunk in stopped.records.chunks(half) {
                match chunk {
                    Chunk::Bytes(bytes) => assert_eq!(take.bytes(bytes), bytes.len()),
                    Chunk::Gap(gap) => assert!(take.gap(gap)),
                }
            }
        }
        let ran = executed();
        match self.what.branches() {
            Some(BufferMode::Circular) => {
                let newest = targets(&branches.collector);
                assert!(newest.len() > CAPACITY - 10, "{what}");
                // A circular buffer has no place for a gap: only the count reports the loss.
                let off = stopped.records.loss(Half::Bts).abandoned > 0;
                assert!(!whole || !off, "{what}");
                let newest = &newest[if off { newest.len() - 300 } else { 0 }..];
                assert_same(newest, &ran[ran.len() - newest.len()..], what);
            }
            Some(BufferMode::Interrupt { .. }) => {
                assert!(!whole || branches.collector.gaps.is_empty(), "{what}");
                check(&branches.collector, &ran, what);
            }
            None => assert_eq!(branches.collector.stretches.concat(), []),
        }
        if let Some(format) = format.filter(|_| self.what.has_samples()) {
            let places = sampled(&samples.collector, format);
            assert!(places.iter().all(|place| ran.contains(place)), "{what}");
            let (most, lost) = (ran.len() as u64 / PERIOD, stopped.records.loss(Half::Pebs).samples);
            let events = places.len() as u64 + lost;
            let least = if samples.collector.gaps.is_empty() { most - 2 } else { most - 4 };
            assert!(!whole || samples.collector.gaps.is_empty(), "{what}");
            assert!((least..=most).contains(&events), "{what}: {events}, {lost} lost, {most}");
        }
        Ok(())
    }
}

/// Checks that the branches are all that were executed, except at gaps.
fn check(collector: &Collector, executed: &[u64], what: &str) {
    let mut at = 0;
    let last = collector.stretches.len() - 1;
    for (n, stretch) in collector.stretches.iter().enumerate() {
        let targets = targets_of(stretch);
        let follows = |from: &usize| executed[*from..].starts_with(&targets);
        // The program comes to the same places again only after more jumps than are missing.
        let mut places = (at..=executed.len()).filter(|_| n > 0).chain((n == 0).then_some(0));
        let place = places.find(follows);
        let place =
            place.unwrap_or_else(|| panic!("{what}: stretch {n} was not executed, or misses something"));
        at = place + targets.len();
    }
    let ends = at == executed.len() || collector.stretches[last].is_empty() && last > 0;
    assert!(ends, "{what}: {} jumps are missing at the end", executed.len() - at);
}
