//! The path from an interrupt to the sinks, for each unit that requests PMIs.

use super::amd;
use super::common::store::{INTERRUPT, What};
use super::common::{Machine, Ram, Registers, user_code};
use super::painted::{Apart, Painted};
use pugmark_decoder_core::ibs::Sample;
use pugmark_kernel::amd::branches::{BranchConfig, BranchUnit};
use pugmark_kernel::amd::counters::{CountedEvent, CounterRunning, CounterUnit, Overflow};
use pugmark_kernel::amd::ibs::{IbsConfig, IbsRunning, IbsUnit, SampleSink};
use pugmark_kernel::drain::{Relay, RelayWriter, Sink};
use pugmark_kernel::intel::ds::{DsArea, DsRunning, DsUnit, Strictness};
use pugmark_kernel::intel::lbr::{Branch, LbrConfig, LbrUnit};
use pugmark_kernel::intel::pebs::{
    Groups, PebsConfig, PreciseEvent, TracedPebsConfig, TracedPebsRunning, TracedPebsUnit,
};
use pugmark_kernel::intel::pt::{Layout, Mode, PtRunning, PtUnit, RegionSize};
use pugmark_kernel::lapic::{Delivery, LocalApic};
use pugmark_kernel::lifecycle::StartError;
use pugmark_kernel::loss::Gap;
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_kernel::slot::{Interrupt, Slot, Traced};
use pugmark_model::intel::IntelSettings;

/// The bytes of stack that a handler has used: in total, and at the call of the sink.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depths {
    pub(crate) all: usize,
    pub(crate) sink: usize,
}

/// A sink that takes everything, and notes the lowest stack address of its calls.
struct Probe(usize);

impl Probe {
    const NEW: Self = Self(usize::MAX);

    #[inline(never)]
    fn note(&mut self) {
        let here = 0_u8;
        self.0 = self.0.min(&raw const here as usize);
    }
}

impl Sink for Probe {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        self.note();
        bytes.len()
    }
    fn gap(&mut self, _: Gap) -> bool {
        self.note();
        true
    }
}

impl SampleSink for Probe {
    fn sample(&mut self, _: &Sample) -> bool {
        self.note();
        true
    }
}

/// The number of PMIs served: after the first ones, the next ones do nothing new.
const PMIS: u32 = 20;

type Accessors<R> = (Apart<R>, Apart<R>);

/// Calls the handler at each interrupt that `run` reports, and stops the trace.
fn serve<T: Traced, R: Msr + LocalApic + Clone>(
    slot: &Slot<T, impl Fn() -> Accessors<R>>,
    mut run: impl FnMut() -> bool,
    probe: impl FnOnce(T) -> usize,
) -> Depths {
    let mut painted = Painted::new();
    let mut served = 0;
    for _ in 0..500_000 {
        if run() {
            let pmi = painted.call(|| slot.interrupt(Some(0x40_0000)));
            served += u32::from(pmi == Ok(Pmi::Served));
        }
        if served == PMIS {
            break;
        }
    }
    assert_eq!(served, PMIS);
    painted.call(|| {
        let _ = slot.pause();
        let _ = slot.resume();
    });
    let all = painted.used();
    let sink = slot.stop(|traced, _| probe(traced)).unwrap();
    Depths { all, sink: if sink == usize::MAX { 0 } else { painted.depth(sink) } }
}

struct Pt<'a, S> {
    running: PtRunning<Apart<Registers>, &'a Ram>,
    sink: S,
}

impl<S: Sink> Traced for Pt<'_, S> {
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

/// Measures Intel PT in each kind of buffer with PMIs: with a reserve, a ring, regions that the driver chains.
pub(crate) fn pt() -> Depths {
    let small = |regions, regions_per_table, contiguous| Layout::Topa {
        size: RegionSize::K4,
        regions,
        regions_per_table,
        contiguous,
    };
    let mut most = Depths::default();
    for (profile, layout, mode) in [
        ("skylake", small(8, 3, false), Mode::StopWhenFull { spare: 2 }),
        ("skylake", small(8, 511, true), Mode::StopWhenFull { spare: 2 }),
        ("skylake", small(8, 3, false), Mode::Circular { interrupt_every: 1 }),
        ("broadwell", small(3, 511, false), Mode::StopWhenFull { spare: 1 }),
        ("broadwell", small(1, 511, false), Mode::StopWhenFull { spare: 0 }),
    ] {
        let machine = Machine::new(profile, IntelSettings::default());
        let depths = pt_with(&machine, layout, mode, Probe::NEW, |probe| probe.0);
        most = Depths { all: most.all.max(depths.all), sink: most.sink.max(depths.sink) };
    }
    most
}

/// Measures Intel PT whose bytes another processor takes.
pub(crate) fn relay() -> Depths {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut memory = vec![0; 1 << 20];
    let mut relay = Relay::new(&mut memory);
    let (writer, _) = relay.split();
    let full = Mode::StopWhenFull { spare: 2 };
    pt_with(&machine, Layout::topa(RegionSize::K4, 8), full, writer, |_: RelayWriter<'_>| usize::MAX)
}

fn pt_with<S: Sink>(
    machine: &Machine,
    layout: Layout,
    mode: Mode,
    sink: S,
    probe: impl Fn(S) -> usize,
) -> Depths {
    let registers = || Apart(machine.registers());
    // SAFETY: one thread uses it, with one machine.
    let slot = unsafe { Slot::new(Handler::new(Delivery::Nmi), || (registers(), registers())) };
    let detected = PtUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), registers());
    let unit = detected.unwrap();
    let buffer = machine.buffer(layout, mode);
    machine.disarm();
    slot.start(|| {
        let running = unit.start(&user_code(), buffer).map_err(|failed| failed.error())?;
        Ok::<_, StartError<_>>(Pt { running, sink })
    })
    .unwrap();
    serve(
        &slot,
        || jump(machine),
        |Pt { running, sink }| {
            running.stop().map_err(|failed| failed.fault).unwrap();
            probe(sink)
        },
    )
}

/// Executes a jump; returns whether a PMI came, which is delivered.
fn jump(machine: &Machine) -> bool {
    let came = machine.jump().is_some();
    if came {
        machine.deliver();
    }
    came
}

struct Store<'a> {
    running: DsRunning<Apart<Registers>, &'a Ram>,
    branches: Probe,
    samples: Probe,
}

impl Traced for Store<'_> {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [&mut self.running.source(&mut self.branches, &mut self.samples)])
    }
}

/// Measures the debug store: branch records and samples.
pub(crate) fn store(what: What) -> Depths {
    let mut most = Depths::default();
    for profile in ["core2", "nehalem", "skylake", "icelake"] {
        let machine = Machine::new(profile, IntelSettings::default());
        let registers = || Apart(machine.registers());
        let unit = DsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), registers()).unwrap();
        let plan = what.plan(unit.capabilities().pebs.ok().map(|pebs| pebs.format));
        let area = DsArea::allocate(&*machine.ram, unit.capabilities(), &plan, Strictness::Strict).unwrap();
        machine.disarm();
        // SAFETY: one thread uses it, with one machine.
        let slot = unsafe { Slot::new(Handler::new(Delivery::Nmi), || (registers(), registers())) };
        let start = || unit.start(&what.config(profile), area).map_err(|failed| failed.error().to_string());
        let traced = |running| Store { running, branches: Probe::NEW, samples: Probe::NEW };
        slot.start(|| start().map(traced)).unwrap();
        let depths = serve(
            &slot,
            || jump(&machine),
            |Store { running, branches, samples }| {
                running.stop().map_err(|failed| failed.fault).unwrap();
                branches.0.min(samples.0)
            },
        );
        most = Depths { all: most.all.max(depths.all), sink: most.sink.max(depths.sink) };
    }
    most
}

/// Branch records with PMIs.
pub(crate) const BRANCHES: What = INTERRUPT;

struct Traces<'a> {
    trace: Pt<'a, Probe>,
    samples: TracedPebsRunning<Apart<Registers>>,
}

impl Traced for Traces<'_> {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        let Self { trace: Pt { running, sink }, samples } = self;
        interrupt.serve(&mut [&mut running.source(sink), &mut samples.source()])
    }
    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.trace.resume()
    }
}

/// Measures Intel PT with samples in its trace.
pub(crate) fn traced_samples() -> Depths {
    let machine = Machine::new("tremont", IntelSettings { pmi_skid: 0, ..IntelSettings::default() });
    let registers = || Apart(machine.registers());
    let unit = PtUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), registers()).unwrap();
    let sampler = TracedPebsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), registers()).unwrap();
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 8), Mode::StopWhenFull { spare: 2 });
    let pebs = PebsConfig::new().os(false).general(1, PreciseEvent::INST_RETIRED, 40);
    let config = TracedPebsConfig::new(pebs).groups(Groups::BASIC).pmi_after_each_record(true);
    machine.disarm();
    // SAFETY: one thread uses it, with one machine.
    let slot = unsafe { Slot::new(Handler::new(Delivery::Nmi), || (registers(), registers())) };
    let start = || {
        let running = unit.start(&user_code(), buffer).map_err(|failed| failed.error().to_string())?;
        let samples = sampler.start(&config).map_err(|failed| failed.error().to_string())?;
        Ok::<_, String>(Traces { trace: Pt { running, sink: Probe::NEW }, samples })
    };
    slot.start(start).unwrap();
    serve(
        &slot,
        || jump(&machine),
        |Traces { trace: Pt { running, sink }, samples }| {
            samples.stop().map_err(|failed| failed.fault).unwrap();
            running.stop().map_err(|failed| failed.fault).unwrap();
            sink.0
        },
    )
}

/// Measures the last branch records, which a handler may read.
pub(crate) fn last_branches() -> Depths {
    let mut painted = Painted::new();
    for profile in ["core2", "nehalem", "skylake", "icelake"] {
        let machine = Machine::new(profile, IntelSettings::default());
        let unit = LbrUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), Apart(machine.registers()))
            .unwrap();
        let mut running = unit.start(&LbrConfig::new()).map_err(|failed| failed.error()).unwrap();
        machine.run(100);
        let mut out = [Branch::default(); 32];
        assert!(!painted.call(|| running.last(&mut out)).unwrap().is_empty());
        running.stop().map_err(|failed| failed.fault).unwrap();
    }
    Depths { all: painted.used(), sink: 0 }
}

struct Amd {
    counters: CounterRunning<Apart<amd::Machine>>,
    ibs: IbsRunning<Apart<amd::Machine>>,
    overflows: usize,
    samples: Probe,
}

impl Traced for Amd {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        let Self { counters, ibs, overflows, samples } = self;
        let mut count = |_: Overflow| {
            *overflows += 1;
            true
        };
        interrupt.serve(&mut [&mut counters.source(&mut count), &mut ibs.source(samples)])
    }
}

/// Measures AMD's counters and IBS in one handler.
pub(crate) fn counters_and_ibs() -> Depths {
    let mut most = Depths::default();
    for profile in ["barcelona", "zen2", "zen5"] {
        let machine = amd::Machine::new(profile, 0);
        let registers = || Apart(machine.clone());
        let cpuid = |leaf, subleaf| machine.cpuid(leaf, subleaf);
        let counters = CounterUnit::detect(cpuid, registers()).unwrap();
        let mut ibs = IbsUnit::detect(cpuid, registers()).unwrap();
        ibs.route(&mut machine.clone(), Some(&mut machine.clone())).unwrap();
        // SAFETY: one thread uses it, with one machine.
        let slot = unsafe { Slot::new(Handler::amd(Delivery::Nmi), || (registers(), registers())) };
        let start = || {
            let event = CountedEvent::new(0xc0, 0).os(false).every(0x200);
            let counters = counters.start(&[event]).map_err(|failed| failed.error().to_string())?;
            let config = IbsConfig::new().fetch(0x10).op(0x200);
            let ibs = ibs.start(&config).map_err(|failed| failed.error().to_string())?;
            Ok::<_, String>(Amd { counters, ibs, overflows: 0, samples: Probe::NEW })
        };
        slot.start(start).unwrap();
        let depths = serve(
            &slot,
            || machine.run(1),
            |Amd { counters, ibs, overflows, samples }| {
                assert!(overflows > 0);
                ibs.stop().map_err(|failed| failed.fault).map(|_| ()).unwrap();
                counters.stop().map_err(|failed| failed.fault).map(|_| ()).unwrap();
                samples.0
            },
        );
        most = Depths { all: most.all.max(depths.all), sink: most.sink.max(depths.sink) };
    }
    most
}

/// Measures AMD's last branches, which a handler may read.
pub(crate) fn amd_branches() -> Depths {
    let mut painted = Painted::new();
    let machine = amd::Machine::new("zen4", 0);
    let unit =
        BranchUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), Apart(machine.clone())).unwrap();
    let mut running = unit.start(&BranchConfig::new()).map_err(|failed| failed.error()).unwrap();
    machine.run(1000);
    let mut out = [pugmark_kernel::amd::branches::Recorded::default(); 16];
    assert!(!painted.call(|| running.last(&mut out)).unwrap().is_empty());
    running.stop().map_err(|failed| failed.fault).unwrap();
    Depths { all: painted.used(), sink: 0 }
}
