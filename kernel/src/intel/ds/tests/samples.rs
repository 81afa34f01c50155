//! Tests of PEBS.

use super::*;
use crate::drain::Chunk;
use crate::intel::pebs::{Counter, Groups, Item, PebsConfig, PebsRefusal, PreciseEvent, Samples};
use crate::lifecycle::{InUse, Missing, NotStarted, StartError};
use pugmark_decoder_core::pebs::Format;

const EVTSEL: u32 = 0x186;
pub(super) const PMC: u32 = 0xc1;

/// (CPUID.1:EAX, IA32_PERF_CAPABILITIES, size of a record)
pub(super) const NEHALEM: (u32, u64, u64) = (0x106a5, 0x100, 176);
const HASWELL: (u32, u64, u64) = (0x306c3, 0x2200, 192);
pub(super) const SKYLAKE: (u32, u64, u64) = (0x506e3, 0x2300, 200);
pub(super) const ICE_LAKE: (u32, u64, u64) = (0x706e5, 0x6400, 32);
/// Formats 5 and 6.
const METEOR_LAKE: (u32, u64, u64) = (0xa06a4, 0x6500, 32);
const LUNAR_LAKE: (u32, u64, u64) = (0xb06d1, 0x6600, 32);
/// A Core 2 of 45 nm: those of 65 nm do not sample.
const CORE_2: (u32, u64, u64) = (0x10676, 0, 144);

/// Returns a processor with samples in this format, whose memory holds branch records and samples.
pub(super) fn machine((signature, capabilities, _): (u32, u64, u64)) -> DsMachine {
    let machine = DsMachine::of(signature, 3);
    machine.set(0x345, capabilities);
    // As after a reset.
    machine.set(GLOBAL_CTRL, 0xf);
    machine
}

impl DsMachine {
    pub(super) fn plan(&self, record_bytes: u64) -> AreaPlan {
        let mode = BufferMode::Interrupt { spare: 4 };
        let samples = BufferPlan { bytes: 20 * record_bytes, page_offset: 0, mode };
        AreaPlan::new().pebs(samples, Groups::BASIC)
    }

    fn memory_for(&self, unit: &DsUnit<Self>, plan: &AreaPlan) -> DsArea<FakeLinear> {
        DsArea::allocate(self.memory.clone(), unit.capabilities(), plan, Strictness::Lenient).unwrap()
    }

    pub(super) fn sample(&self, config: &DsConfig, plan: &AreaPlan) -> DsRunning<Self, FakeLinear> {
        let unit = self.unit();
        let area = self.memory_for(&unit, plan);
        unit.start(config, area).map_err(|failed| failed.error()).unwrap()
    }

    /// Executes events, numbered from `first`, that every counter counts, with the processor's effects that the driver
    /// sees.
    pub(super) fn events(&self, first: u64, count: u64, record_bytes: u64) {
        for event in first..first + count {
            for n in 0..4 {
                let samples = self.get(PEBS_ENABLE) >> n & 1 == 1;
                let counts = self.get(GLOBAL_CTRL) >> n & 1 == 1 && self.get(EVTSEL + n) & 1 << 22 != 0;
                if !counts {
                    continue;
                }
                if self.armed.get() >> n & 1 == 1 {
                    self.armed.set(self.armed.get() & !(1 << n));
                    self.set(PMC + n, self.field(8 + u64::from(n)));
                    self.store(event, n, record_bytes);
                    continue;
                }
                let value = (self.get(PMC + n) + 1) & WIDTH;
                self.set(PMC + n, value);
                self.armed.set(self.armed.get() | u64::from(value == 0 && samples) << n);
            }
        }
    }

    fn store(&self, event: u64, counter: u32, record_bytes: u64) {
        let [index, maximum, threshold] = [5, 6, 7].map(|n| self.field(n));
        if index >= maximum {
            return;
        }
        match record_bytes {
            // The basic group: format and size, the eventing IP.
            32 => self.memory.write::<8>(index, 32 << 48),
            _ => self.memory.write::<8>(index, u64::from(counter)),
        }
        self.memory.write::<8>(index + 8, event);
        self.memory.write::<8>(self.get(DS_AREA) + 8 * 5, index + record_bytes);
        if index + record_bytes >= threshold {
            self.set(STATUS, self.get(STATUS) | 1 << 62);
            self.request();
        }
    }
}

/// The numbers of the events that produced a record, and the gaps.
#[derive(Default)]
pub(super) struct Events(pub(super) Vec<Result<u64, Gap>>);

impl Events {
    pub(super) fn sink(&mut self, format: Format) -> Samples<impl FnMut(Item<'_>) -> bool + '_> {
        Samples::new(format, |item: Item<'_>| {
            self.0.push(match item {
                Item::Record(record) => Ok(record.next_ip().or(record.eventing_ip).unwrap()),
                Item::Gap(gap) => Err(gap),
                Item::Error(error) => panic!("{error}"),
            });
            true
        })
    }
}

/// Returns the numbers of recorded events: the event after each overflow produces the record, and is not counted.
fn every(period: u64, count: u64) -> Vec<Result<u64, Gap>> {
    (1..=count).map(|n| Ok(n * (period + 1) - 1)).collect()
}

pub(super) fn branches(period: u64) -> DsConfig {
    counting(PreciseEvent::BR_INST_RETIRED_PEBS, period)
}

fn counting(event: PreciseEvent, period: u64) -> DsConfig {
    DsConfig::new().pebs(PebsConfig::new().general(0, event, period)).gate(INTERRUPT_GATE)
}

#[test]
fn a_counter_samples_and_all_is_as_it_was_after_it() {
    let mispredicted = PreciseEvent { select: 0xc5, umask: 0 };
    // (processor, format, event, IA32_PERFEVTSEL0)
    let table = [
        (CORE_2, Format::Registers, mispredicted, 0x43_00c5),
        (NEHALEM, Format::Latency, PreciseEvent::BR_INST_RETIRED, 0x43_00c4),
        (HASWELL, Format::Transaction, PreciseEvent::BR_INST_RETIRED_PEBS, 0x43_04c4),
        (SKYLAKE, Format::Time, PreciseEvent::BR_INST_RETIRED_PEBS, 0x43_04c4),
        (ICE_LAKE, Format::Adaptive, PreciseEvent::BR_INST_RETIRED, 0x4_0043_00c4),
    ];
    for (processor, format, event, select) in table {
        let (machine, bytes) = (machine(processor), processor.2);
        // Another owner counts with counter 1.
        machine.set(EVTSEL + 1, 0x41_003c);
        machine.set(0x3f2, 0x1234);
        let running = machine.sample(&counting(event, 1000), &machine.plan(bytes));
        assert_eq!(
            (machine.get(EVTSEL), machine.get(PEBS_ENABLE), machine.get(GLOBAL_CTRL)),
            (select, 1, 0xf)
        );
        assert_eq!((machine.get(PMC), machine.field(8)), (WIDTH - 999, WIDTH - 999));
        assert_eq!(machine.get(0x3f2), if format == Format::Adaptive { 0 } else { 0x1234 });
        machine.events(0, 3500, bytes);
        let stopped = running.stop().map_err(|failed| failed.fault).unwrap();
        let left = [EVTSEL, PEBS_ENABLE, GLOBAL_CTRL, EVTSEL + 1, 0x3f2, DS_AREA].map(|at| machine.get(at));
        assert_eq!(left, [0, 0, 0xf, 0x41_003c, 0x1234, 0]);
        assert!(stopped.records.loss(Half::Pebs).is_none());
        let chunks: Vec<_> = stopped.records.chunks(Half::Pebs).collect();
        let [Chunk::Bytes(records)] = chunks[..] else { panic!("{chunks:?}") };
        let mut seen = Events::default();
        seen.sink(format).bytes(records);
        assert_eq!(seen.0, every(1000, 3));
        drop(stopped);
        assert_eq!(machine.memory.live(), 0);
    }
}

#[test]
fn counters_are_written_before_the_processor_may_store() {
    let table: [(_, &[u32]); 3] = [
        (
            NEHALEM,
            &[0x390, GLOBAL_CTRL, EVTSEL, EVTSEL, EVTSEL, PMC, EVTSEL, DS_AREA, PEBS_ENABLE, GLOBAL_CTRL],
        ),
        (SKYLAKE, &[0x390, GLOBAL_CTRL, 0x4c1, EVTSEL, DS_AREA, PEBS_ENABLE, GLOBAL_CTRL]),
        (ICE_LAKE, &[0x390, GLOBAL_CTRL, 0x4c1, EVTSEL, 0x3f2, DS_AREA, PEBS_ENABLE, GLOBAL_CTRL]),
    ];
    for (processor, expected) in table {
        let machine = machine(processor);
        let unit = machine.unit();
        let area = machine.memory_for(&unit, &machine.plan(processor.2));
        machine.msr.borrow_mut().writes.clear();
        let running = unit.start(&branches(1000), area).map_err(|failed| failed.error()).unwrap();
        let writes = machine.msr.borrow().writes.clone();
        assert!(writes.iter().map(|(address, _)| *address).eq(expected.iter().copied()), "{writes:x?}");
        // Not one event is counted before that.
        assert_eq!((writes[1].1, writes.last().unwrap().1), (0xe, 0xf));
        let cleared =
            writes.iter().skip(2).take_while(|(address, _)| *address == EVTSEL).map(|(_, event)| *event);
        assert!(processor != NEHALEM || cleared.eq([0x43_00d2, 0x43_00b1, 0x43_00b5]), "{writes:x?}");
        drop(running);
        assert_eq!((machine.get(PEBS_ENABLE), machine.get(DS_AREA), machine.memory.live()), (0, 0, 0));
    }
}

#[test]
fn the_resets_of_fixed_function_counters_come_after_those_of_all_general_ones() {
    // Format 4 has 8 of them and the later formats have 32, however many counters exist.
    for (processor, general) in [(ICE_LAKE, 8), (METEOR_LAKE, 32), (LUNAR_LAKE, 32)] {
        let machine = machine(processor);
        let config =
            PebsConfig::new().fixed(0, 5000).fixed(2, 6000).general(3, PreciseEvent::INST_RETIRED, 7000);
        let config = DsConfig::new().pebs(config).gate(INTERRUPT_GATE);
        let running = machine.sample(&config, &machine.plan(32));
        let resets: Vec<_> = (0..48).map(|place| (place, machine.field(8 + place))).collect();
        let mut expected = vec![0; 48];
        for (place, period) in [(3, 7000), (general, 5000), (general + 2, 6000)] {
            expected[place] = WIDTH + 1 - period;
        }
        let expected: Vec<_> = (0..48).zip(expected).collect();
        assert_eq!(resets, expected, "{processor:x?}");
        drop(running);
    }
}

#[test]
fn fixed_function_counters_have_their_own_registers_and_places() {
    let machine = machine(ICE_LAKE);
    machine.set(0x38d, 0xb0);
    let config = PebsConfig::new().fixed(0, 5000).general(3, PreciseEvent::INST_RETIRED, 7000).user(false);
    let config = DsConfig::new().pebs(config).gate(INTERRUPT_GATE);
    let running = machine.sample(&config, &machine.plan(32));
    let registers = [0x38d, 0x309, EVTSEL + 3, PMC + 3, PEBS_ENABLE, GLOBAL_CTRL].map(|at| machine.get(at));
    assert_eq!(
        registers,
        [0x1_0000_00b1, WIDTH - 4999, 0x4_0042_00c0, WIDTH - 6999, 0x1_0000_0008, 0x1_0000_000f]
    );
    assert_eq!((machine.field(8 + 3), machine.field(8 + 8)), (WIDTH - 6999, WIDTH - 4999));
    drop(running);
    assert_eq!([0x38d, EVTSEL + 3, PEBS_ENABLE, GLOBAL_CTRL].map(|at| machine.get(at)), [0xb0, 0, 0, 0xf]);
}

#[test]
fn the_groups_of_an_adaptive_record_are_the_areas() {
    let machine = machine(ICE_LAKE);
    let mode = BufferMode::Interrupt { spare: 4 };
    let groups = Groups::BASIC.memory(true).registers(true).branches(8);
    let samples = BufferPlan { bytes: 0x2000, page_offset: 0, mode };
    let running = machine.sample(&branches(1000), &AreaPlan::new().pebs(samples, groups));
    assert_eq!(machine.get(0x3f2), 0x700_000b);
    // 400 bytes a record: 20 of them.
    assert_eq!(machine.field(6) - machine.field(4), 20 * 400);
    drop(running);
}

#[test]
fn what_somebody_else_uses_is_left_alone() {
    let zero = Counter::General(0);
    let in_use = |control| InUse::Counter { counter: zero, control };
    // (register, value, error)
    let table = [
        (EVTSEL, 0x41_003c, in_use(0x41_003c)),
        // Not counting now.
        (EVTSEL, 0x3c, in_use(0x3c)),
        (EVTSEL, 1 << 22, in_use(1 << 22)),
        (PEBS_ENABLE, 2, InUse::Sampler { pebs_enable: 2 }),
        (PEBS_ENABLE, 1 << 61, InUse::Sampler { pebs_enable: 1 << 61 }),
        (DS_AREA, 0x5000, InUse::DebugStore { area: 0x5000 }),
    ];
    for (register, value, error) in table {
        let machine = machine(SKYLAKE);
        let unit = machine.unit();
        let area = machine.memory_for(&unit, &machine.plan(200));
        machine.set(register, value);
        machine.msr.borrow_mut().writes.clear();
        let failed = unit.start(&branches(1000), area).err().unwrap();
        assert_eq!(failed.error(), StartError::InUse(error));
        assert_eq!(machine.msr.borrow().writes, []);
    }

    let machine = machine(ICE_LAKE);
    machine.set(0x38d, 0x20);
    let unit = machine.unit();
    let area = machine.memory_for(&unit, &machine.plan(32));
    let config = DsConfig::new().pebs(PebsConfig::new().fixed(1, 2000)).gate(INTERRUPT_GATE);
    let failed = unit.start(&config, area).err().unwrap();
    assert_eq!(failed.error(), InUse::Counter { counter: Counter::Fixed(1), control: 0x20 }.into());
}

#[test]
fn a_counter_that_only_the_processor_says_is_in_use_is_left_alone() {
    const GLOBAL_INUSE: u32 = 0x392;
    // (counter that is to sample, version, IA32_PERF_GLOBAL_INUSE, that names the counter)
    for (counter, version, others, taken) in [
        (Counter::General(3), 5, 1 << 3, true),
        (Counter::General(3), 5, !(1 << 3), false),
        (Counter::Fixed(1), 5, 1 << 33, true),
        (Counter::Fixed(1), 5, !(1 << 33), false),
        // The register is not there.
        (Counter::General(3), 3, 1 << 3, false),
    ] {
        let machine = DsMachine { version, ..machine(ICE_LAKE) };
        let unit = machine.unit();
        let area = machine.memory_for(&unit, &machine.plan(32));
        machine.set(GLOBAL_INUSE, others);
        machine.msr.borrow_mut().writes.clear();
        let pebs = match counter {
            Counter::General(n) => PebsConfig::new().general(n, PreciseEvent::INST_RETIRED, 2000),
            Counter::Fixed(n) => PebsConfig::new().fixed(n, 2000),
        };
        let started = unit.start(&DsConfig::new().pebs(pebs).gate(INTERRUPT_GATE), area);
        let error = started.err().map(|failed| failed.error());
        let in_use = InUse::Counter { counter, control: others };
        assert_eq!(error, taken.then_some(StartError::InUse(in_use)), "{counter} {version}");
        assert_eq!(machine.msr.borrow().writes.is_empty(), taken, "{counter} {version}");
    }
}

#[test]
fn sampling_goes_beside_last_branches_and_processor_trace() {
    let machine = machine(SKYLAKE);
    let unit = machine.unit();
    let area = machine.memory_for(&unit, &machine.plan(200));
    machine.set(DEBUGCTL, 0x1);
    machine.set(0x570, 0x2005);
    let running = unit.start(&branches(1000), area).map_err(|failed| failed.error()).unwrap();
    drop(running);
    assert_eq!((machine.get(DEBUGCTL), machine.get(0x570)), (0x1, 0x2005));
}

#[test]
fn the_threshold_asks_for_a_pmi_that_drains_and_goes_on() {
    let (machine, bytes) = (machine(HASWELL), HASWELL.2);
    let mut handler = armed(&machine);
    let mut running = machine.sample(&branches(1000), &machine.plan(bytes));
    let mut seen = Events::default();
    for round in 0..3 {
        // 16 records reach the threshold.
        machine.events(16_016 * round, 16_015, bytes);
        assert_eq!(machine.get(LVT_PC), 0x400);
        machine.events(16_016 * round + 16_015, 1, bytes);
        assert_eq!(machine.get(LVT_PC), 0x10400);
        // Some processors also report that the counter overflowed; the status of other owners stays.
        machine.set(STATUS, machine.get(STATUS) | 0b101);
        let mut sink = seen.sink(Format::Transaction);
        assert_eq!(interrupt(&machine, &mut handler, &mut running, &mut KeepAll, &mut sink), Pmi::Served);
        drop(sink);
        assert_eq!((machine.get(STATUS), machine.get(LVT_PC)), (0b100, 0x400));
        assert_eq!((machine.get(PEBS_ENABLE), machine.get(GLOBAL_CTRL)), (1, 0xf));
    }
    assert_eq!(seen.0, every(1000, 48));
    assert!(running.loss(Half::Pebs).is_none());
}

#[test]
fn counters_that_are_given_up_stand_still_which_is_counted() {
    let (machine, bytes) = (machine(HASWELL), HASWELL.2);
    let mut running = machine.sample(&branches(1000), &machine.plan(bytes));
    running.source(&mut KeepAll, &mut KeepAll).abandon(Abandoned::Stuck);
    assert_eq!(running.loss(Half::Pebs), &Loss { abandoned: 1, ..Loss::NONE });
    assert!(running.loss(Half::Bts).is_none(), "no branches are recorded");
    assert_eq!(machine.get(PEBS_ENABLE), 0);
}

#[test]
fn a_full_buffer_waits_for_the_sink_and_says_what_it_lost() {
    let machine = machine(NEHALEM);
    let mut running = machine.sample(&branches(1000), &machine.plan(176));
    machine.events(0, 25_025, 176);
    running.drain(&mut KeepAll, &mut KeepAll).unwrap();
    assert_eq!(running.state(Half::Pebs), Some(DsState::Full));
    assert_eq!((machine.get(PEBS_ENABLE), machine.get(GLOBAL_CTRL)), (0, 0xe));
    let mut seen = Events::default();
    running.drain(&mut KeepAll, &mut seen.sink(Format::Latency)).unwrap();
    assert_eq!(running.state(Half::Pebs), Some(DsState::Recording));
    machine.events(0, 1001, 176);
    running.drain(&mut KeepAll, &mut seen.sink(Format::Latency)).unwrap();
    assert_eq!(seen.0, [every(1000, 20), vec![Err(Gap::Stop)], every(1000, 1)].concat());
    let loss = running.loss(Half::Pebs);
    assert_eq!((loss.stop, loss.full), (1, 1));
}

/// Records with both halves.
fn both() -> (DsConfig, AreaPlan) {
    let branches_plan =
        BufferPlan { bytes: 24 * 100, page_offset: 0, mode: BufferMode::Interrupt { spare: 8 } };
    let samples_plan =
        BufferPlan { bytes: 176 * 20, page_offset: 0, mode: BufferMode::Interrupt { spare: 4 } };
    let config = branches(1000).bts(BtsConfig::new());
    (config, AreaPlan::new().bts(branches_plan).pebs(samples_plan, Groups::BASIC))
}

#[test]
fn both_halves_are_recorded_at_once_and_one_pmi_serves_both() {
    let machine = machine(NEHALEM);
    let mut handler = armed(&machine);
    let (config, plan) = both();
    let mut running = machine.sample(&config, &plan);
    assert_eq!((machine.get(DEBUGCTL), machine.get(PEBS_ENABLE)), (0x1c0, 1));
    machine.branches(0, 50);
    machine.events(0, 16_016, 176);
    let (mut numbers, mut seen) = (super::branches::Numbers::default(), Events::default());
    let mut sink = seen.sink(Format::Latency);
    assert_eq!(interrupt(&machine, &mut handler, &mut running, &mut numbers, &mut sink), Pmi::Served);
    drop(sink);
    assert_eq!((numbers.seen.len(), seen.0), (50, every(1000, 16)));
    assert_eq!((machine.get(DEBUGCTL), machine.get(PEBS_ENABLE), machine.get(GLOBAL_CTRL)), (0x1c0, 1, 0xf));
    assert_eq!((machine.field(0), machine.field(4)), (machine.field(1), machine.field(5)));
}

#[test]
fn a_half_that_is_full_does_not_stop_the_other() {
    let machine = machine(NEHALEM);
    let (config, plan) = both();
    let mut running = machine.sample(&config, &plan);
    machine.branches(0, 200);
    machine.events(0, 3003, 176);
    let mut seen = Events::default();
    running.drain(&mut KeepAll, &mut seen.sink(Format::Latency)).unwrap();
    assert_eq!(
        (running.state(Half::Bts), running.state(Half::Pebs)),
        (Some(DsState::Full), Some(DsState::Recording))
    );
    assert_eq!((machine.get(DEBUGCTL), machine.get(PEBS_ENABLE)), (0, 1));
    machine.events(3003, 3003, 176);
    let mut numbers = super::branches::Numbers::default();
    running.drain(&mut numbers, &mut seen.sink(Format::Latency)).unwrap();
    assert_eq!(seen.0, every(1000, 6));
    assert_eq!(numbers.seen.len(), 101);
    assert_eq!((machine.get(DEBUGCTL), machine.get(PEBS_ENABLE)), (0x1c0, 1));
}

#[test]
fn a_fault_at_any_access_leaves_nothing_running_and_nothing_lost() {
    let (config, plan) = both();
    let plan = |machine: &DsMachine| match machine.signature {
        0x706e5 => machine.plan(32),
        _ => plan,
    };
    let adaptive = DsConfig::new()
        .pebs(PebsConfig::new().fixed(0, 5000).general(1, PreciseEvent::INST_RETIRED, 7000))
        .gate(INTERRUPT_GATE);
    for (processor, config) in [(NEHALEM, config), (ICE_LAKE, adaptive)] {
        for nth in 0.. {
            let machine = machine(processor);
            machine.set(0x3f2, 0x2);
            let unit = machine.unit();
            let area = machine.memory_for(&unit, &plan(&machine));
            machine.msr.borrow_mut().fault_in(nth);
            let failed = match unit.start(&config, area) {
                Err(failed) => failed,
                Ok(running) => {
                    assert!(nth > 14, "{nth} accesses");
                    machine.msr.borrow_mut().fault_at = None;
                    drop(running);
                    break;
                }
            };
            assert!(matches!(failed, NotStarted::Off { .. }), "access {nth}");
            let left = [DEBUGCTL, DS_AREA, EVTSEL, EVTSEL + 1, 0x38d, PEBS_ENABLE, GLOBAL_CTRL, 0x3f2];
            assert_eq!(left.map(|at| machine.get(at)), [0, 0, 0, 0, 0, 0, 0xf, 2], "access {nth}");
            let NotStarted::Off { unit, memory: area, .. } = failed else { unreachable!() };
            let running = unit.start(&config, area).map_err(|failed| failed.error()).unwrap();
            drop(running);
            assert_eq!(machine.memory.live(), 0);
        }
    }
}

#[test]
fn a_fault_at_any_access_of_the_stop_can_be_tried_again() {
    let (config, plan) = both();
    for nth in 0.. {
        let machine = machine(NEHALEM);
        let running = machine.sample(&config, &plan);
        machine.branches(0, 3);
        machine.events(0, 2002, 176);
        machine.msr.borrow_mut().fault_in(nth);
        let (stopped, done) = match running.stop() {
            Ok(stopped) => (stopped, true),
            Err(failed) => (failed.running.stop().map_err(|failed| failed.fault).unwrap(), false),
        };
        let left = [DEBUGCTL, DS_AREA, EVTSEL, PEBS_ENABLE, GLOBAL_CTRL].map(|at| machine.get(at));
        assert_eq!(left, [0, 0, 0, 0, 0xf], "access {nth}");
        let bytes = |half| match stopped.records.chunks(half).collect::<Vec<_>>()[..] {
            [Chunk::Bytes(bytes)] => bytes.len(),
            ref chunks => panic!("{chunks:?}"),
        };
        assert_eq!((bytes(Half::Bts), bytes(Half::Pebs)), (3 * 24, 2 * 176), "access {nth}");
        if done {
            assert_eq!(nth, 12, "accesses of a stop");
            break;
        }
    }
}

#[test]
fn a_branch_store_that_does_not_stop_does_not_keep_the_counters_going() {
    let (config, plan) = both();
    let machine = machine(NEHALEM);
    let running = machine.sample(&config, &plan);
    // After the read of IA32_DS_AREA, which shows the recording's owner.
    machine.msr.borrow_mut().fault_in(1);
    let failed = running.stop().err().unwrap();
    assert_eq!(failed.fault.address, DEBUGCTL);
    assert_eq!((machine.get(DEBUGCTL), machine.get(PEBS_ENABLE), machine.get(GLOBAL_CTRL)), (0x1c0, 0, 0xe));
    drop(failed);
    assert_eq!((machine.get(DEBUGCTL), machine.memory.live()), (0, 0));
}

#[test]
fn memory_stays_with_counters_that_do_not_stop() {
    let machine = machine(NEHALEM);
    let running = machine.sample(&branches(1000), &machine.plan(176));
    machine.msr.borrow_mut().fault_in(2);
    drop(running);
    assert_eq!(machine.memory.live(), 2);
    machine.memory.forget();
}

#[test]
fn refuses_what_cannot_be_sampled() {
    let pebs = PebsConfig::new().general(0, PreciseEvent::INST_RETIRED, 2000);
    let table = [
        (NEHALEM, DsConfig::new().pebs(pebs), DsRefusal::NoGate),
        (
            NEHALEM,
            DsConfig::new().pebs(pebs).gate(Gate(0x0000_8f00_0008_0000)),
            DsRefusal::NotAnInterruptGate(Gate(0x0000_8f00_0008_0000)),
        ),
        (NEHALEM, DsConfig::new().gate(INTERRUPT_GATE), DsRefusal::Nothing),
        (NEHALEM, branches(2000).bts(BtsConfig::new()), DsRefusal::NoBuffer(Half::Bts)),
        (NEHALEM, branches(100), DsRefusal::Pebs(PebsRefusal::Spare { spare: 4, needed: 11 })),
        (
            CORE_2,
            DsConfig::new().pebs(pebs.general(1, PreciseEvent::INST_RETIRED, 2000)).gate(INTERRUPT_GATE),
            DsRefusal::Pebs(PebsRefusal::NoCounter(Counter::General(1))),
        ),
        // Core 2 counts branches, but does not sample them.
        (
            CORE_2,
            branches(2000),
            DsRefusal::Pebs(PebsRefusal::NotPrecise {
                event: PreciseEvent::BR_INST_RETIRED_PEBS,
                counter: Counter::General(0),
                counters: 0,
            }),
        ),
    ];
    for (processor, config, refusal) in table {
        let machine = machine(processor);
        let unit = machine.unit();
        let area = machine.memory_for(&unit, &machine.plan(processor.2));
        let failed = unit.start(&config, area).err().unwrap();
        assert_eq!(failed.error(), StartError::Refused(refusal));
    }

    let machine = DsMachine::of(0xf41, 0);
    let unit = machine.unit();
    let branch_buffer = BufferPlan { bytes: 2400, page_offset: 0, mode: BufferMode::Circular };
    let area = machine.memory_for(&unit, &AreaPlan::new().bts(branch_buffer));
    let failed = unit.start(&branches(2000), area).err().unwrap();
    assert_eq!(failed.error(), StartError::Refused(DsRefusal::NoPebs(Missing::NetBurstPebs)));
}

#[test]
fn an_emergency_stop_stops_both_halves() {
    let machine = machine(NEHALEM);
    let capabilities = *machine.unit().capabilities();
    let (config, plan) = both();
    let running = machine.sample(&config, &plan);
    emergency_stop(&mut machine.clone(), &capabilities).unwrap();
    assert_eq!((machine.get(DEBUGCTL), machine.get(PEBS_ENABLE)), (0, 0));
    drop(running);
}
