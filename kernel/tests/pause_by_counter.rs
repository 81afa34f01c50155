//! A trace that one counter's overflow pauses, and another's resumes.

mod common;

use common::{Collector, Machine, Ram, Registers, assert_same, tips, user_code};
use pugmark_kernel::intel::pt::{Layout, Mode, PtTracer, RegionSize};
use pugmark_kernel::lapic::{Delivery, LocalApic};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Handler, Pmi, PmiSource, Requests};
use pugmark_kernel::slot::{Interrupt, Slot, Traced};
use pugmark_model::intel::IntelSettings;

const FULL: Mode = Mode::StopWhenFull { spare: 1 };
const RTIT_CTL: u32 = 0x570;

type Held = PtTracer<Registers, &'static Ram, Collector>;
type Processor = Box<dyn Fn() -> (Registers, Registers)>;

/// Counters 0 and 1 count instructions; the overflow of one pauses the trace, that of the other resumes it.
struct Counters {
    registers: Registers,
    /// The number of instructions between overflows, of each counter.
    periods: [u64; 2],
}

const PMC0: u32 = 0xc1;
const PERFEVTSEL0: u32 = 0x186;

impl Counters {
    fn write(&mut self, register: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: the registers stand for no hardware.
        unsafe { self.registers.wrmsr(register, value) }
    }

    /// Arms a counter: first counter 0; each arms the other when it overflows.
    fn arm(&mut self, n: u32) -> Result<(), GeneralProtection> {
        self.write(PMC0 + n, self.periods[n as usize].wrapping_neg() & 0xffff_ffff)?;
        // Instructions retired, at user level, with an interrupt.
        self.write(PERFEVTSEL0 + n, 0xc0 | 1 << 16 | 1 << 20 | 1 << 22)?;
        self.write(PERFEVTSEL0 + (n ^ 1), 0)
    }
}

/// A trace together with the counters.
struct Counted {
    cpu: &'static Slot<Counted, Processor>,
    tracer: Held,
    counters: Counters,
}

struct CounterSource<'a>(&'a mut Counters, &'a Slot<Counted, Processor>);

impl PmiSource for CounterSource<'_> {
    fn status(&self) -> Requests {
        Requests::in_global_status(0b11)
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }

    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection> {
        if seen == Requests::in_global_status(0b01) {
            self.1.pause()?;
            self.0.arm(1)?;
        } else if seen == Requests::in_global_status(0b10) {
            self.1.resume()?;
            self.0.arm(0)?;
        }
        Ok(!seen.is_empty())
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }
}

impl Traced for Counted {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        let Self { cpu, tracer, counters } = self;
        let mut counters = CounterSource(counters, cpu);
        interrupt.serve(&mut [&mut tracer.running.source(&mut tracer.sink), &mut counters])
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.tracer.running.resume().map(|_| ())
    }
}

#[test]
fn the_overflow_of_one_counter_pauses_the_trace_and_that_of_another_resumes_it() {
    let settings = IntelSettings { pmi_skid: 0, ..IntelSettings::default() };
    for periods in [[100, 40], [7, 3], [1500, 1500]] {
        let machine: &Machine = Box::leak(Box::new(Machine::new("skylake", settings)));
        machine.disarm();
        let processor: Processor = Box::new(|| (machine.registers(), machine.registers()));
        // SAFETY: one thread uses it, with one machine.
        let slot: &Slot<Counted, _> =
            Box::leak(Box::new(unsafe { Slot::new(Handler::new(Delivery::Nmi), processor) }));
        let unit = machine.unit().gated_by(slot.gate());
        let buffer = machine.buffer(Layout::topa(RegionSize::K4, 8), FULL);
        let mut counters = Counters { registers: machine.registers(), periods };
        let started = slot.start(|| {
            let tracer = PtTracer::start(unit, &user_code(), buffer, Collector::new())?;
            counters.arm(0).unwrap();
            Ok::<_, pugmark_kernel::lifecycle::StartError<_>>(Counted { cpu: slot, tracer, counters })
        });
        started.unwrap();
        let mut on = Vec::new();
        for _ in 0..20_000 {
            on.push(machine.msr(RTIT_CTL) & 1 != 0);
            let mut pmi = machine.jump().is_some();
            while pmi {
                machine.handle(|| slot.interrupt(None)).unwrap();
                pmi = machine.take_interrupt();
            }
        }
        let runs: Vec<u64> = on.chunk_by(|one, other| one == other).map(|run| run.len() as u64).collect();
        assert!(runs.len() > 10, "{runs:?}");
        for (n, run) in runs[..runs.len() - 1].iter().enumerate() {
            assert_eq!(*run, periods[n % 2], "run {n}");
        }
        assert_eq!(slot.gate().pauses(), runs.len() as u64 / 2);
        let Counted { tracer, .. } = slot.stop(|counted, _| counted).unwrap();
        let (stopped, collector) = tracer.stop().unwrap();
        assert_eq!(stopped.loss, Loss::NONE);
        let traced: Vec<u64> =
            machine.executed().into_iter().zip(on).filter_map(|(target, on)| on.then_some(target)).collect();
        assert_same(&tips(collector.whole()), &traced, "what ran between resume and pause");
    }
}
