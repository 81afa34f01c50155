//! The debug store and the last branch records: on any failure, memory is neither leaked nor written after it was
//! freed, and recording works again.

mod common;

use common::store::{CAPACITY, CIRCULAR, INTERRUPT, PERIOD, Recording, What, sampled, targets};
use common::{Collector, Machine, Ram, Registers, assert_same};
use pugmark_kernel::drain::{Chunk, Sink};
use pugmark_kernel::intel::ds::{AreaError, BufferMode, DsArea, DsUnit, Half, Records, Strictness};
use pugmark_kernel::intel::lbr::{self, Branch, LbrConfig};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::lifecycle::{NotCurrent, NotStarted};
use pugmark_kernel::loss::{Gap, Overwritten};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_model::intel::IntelSettings;

/// Profiles, and the recording of each.
const TABLE: [(&str, What); 15] = [
    ("prescott", INTERRUPT),
    ("core2", INTERRUPT),
    ("skylake", INTERRUPT),
    ("prescott", CIRCULAR),
    ("skylake", CIRCULAR),
    ("core2", What::Samples),
    ("nehalem", What::Samples),
    ("skylake", What::Samples),
    ("icelake", What::Samples),
    ("broadwell", INTERRUPT),
    ("broadwell", What::Samples),
    ("nehalem", INTERRUPT),
    ("core2", What::Both),
    ("nehalem", What::Both),
    ("icelake", What::Both),
];

const IA32_DEBUGCTL: u32 = 0x1d9;
const IA32_DS_AREA: u32 = 0x600;
const IA32_PEBS_ENABLE: u32 = 0x3f1;
const IA32_PERF_GLOBAL_INUSE: u32 = 0x392;
const IA32_PERFEVTSEL0: u32 = 0x186;

#[test]
fn each_access_that_faults_in_turn_leaves_a_recording_that_goes_on() {
    for (profile, what) in TABLE {
        let machine = small(profile);
        let before = machine.accesses();
        assert_eq!(life(&machine, profile, what), 0, "{profile} {what:?}: faults without a reason");
        for access in 0..machine.accesses() - before {
            let machine = small(profile);
            machine.fault_in(access);
            let what_failed = format!("{profile} {what:?} access {access}");
            let faults = life(&machine, profile, what);
            // A hypervisor may announce this register and not have it: the driver works without it.
            let is_told = machine.faulted_read() != Some(IA32_PERF_GLOBAL_INUSE);
            assert_eq!(faults, u32::from(is_told), "{what_failed}: the fault is told");
            assert_off(&machine, what, &what_failed);
            // Once more, from the beginning.
            assert_eq!(life(&machine, profile, what), 0, "{what_failed}");
            assert_off(&machine, what, &what_failed);
        }
    }
}

#[test]
fn a_recording_that_cannot_be_stopped_keeps_its_memory() {
    for (profile, what) in TABLE {
        // The accesses of a drop, which all fault in turn.
        let mut faults = 0;
        loop {
            let machine = small(profile);
            let running = start(&machine, profile, what);
            machine.run(10);
            let (live, before) = (machine.ram.live(), machine.accesses());
            machine.fault_in(faults);
            drop(running);
            if machine.accesses() - before <= faults {
                break;
            }
            assert!(machine.ram.live() == live || !machine.is_tracing(), "{profile} {what:?} {faults}");
            assert_eq!(machine.ram.live(), live, "{profile} {what:?} {faults}: it may still be written to");
            machine.run(1000);
            assert_eq!(*machine.ram.strays.borrow(), [], "{profile} {what:?} {faults}");
            faults += 1;
        }
        assert!(faults >= 2, "{profile} {what:?}");
    }
}

#[test]
fn a_start_that_can_neither_go_on_nor_back_keeps_the_memory_with_the_unit() {
    for (profile, what) in TABLE {
        let machine = small(profile);
        let before = machine.accesses();
        let running = start(&machine, profile, what);
        let accesses = machine.accesses() - before;
        drop(running);
        let mut stuck = 0;
        for access in 0..accesses {
            let machine = small(profile);
            let Ok(unit) = store(&machine) else { panic!("a debug store") };
            let area = machine.area(&unit, what);
            let live = machine.ram.live();
            machine.faults_in(access, 2);
            match unit.start(&what.config(profile), area) {
                Err(NotStarted::Stuck { running, .. }) => {
                    stuck += 1;
                    assert_eq!(machine.ram.live(), live);
                    machine.run(10);
                    // Later the recording can be stopped.
                    drop(running);
                }
                Err(NotStarted::Off { .. }) => {}
                // A start has fewer accesses than it has with the detection.
                Ok(running) => {
                    machine.faults_in(u32::MAX, 1);
                    drop(running);
                }
            }
            assert_off(&machine, what, &format!("{profile} {what:?} {access}"));
        }
        assert!(stuck > 0, "{profile} {what:?}");
    }
}

#[test]
fn each_allocation_that_fails_in_turn_gives_back_the_others() {
    for (profile, what) in TABLE {
        let blocks = if what == What::Both { 3 } else { 2 };
        for fail_at in 0..=blocks {
            let machine = small(profile);
            let unit = store(&machine).unwrap();
            let plan = what.plan(unit.capabilities().pebs.ok().map(|pebs| pebs.format));
            machine.ram.fail_at.set(Some(fail_at));
            let made = DsArea::allocate(&*machine.ram, unit.capabilities(), &plan, Strictness::Strict);
            match fail_at == blocks {
                true => assert!(made.is_ok()),
                false => assert!(matches!(made, Err(AreaError::NoMemory { .. })), "{profile} {what:?}"),
            }
            drop(made);
            assert_eq!(machine.ram.live(), 0, "{profile} {what:?} {fail_at}");
            drop(unit);
            machine.ram.fail_at.set(None);
            assert_eq!(life(&machine, profile, what), 0);
        }
    }
}

#[test]
fn each_access_that_faults_in_turn_leaves_last_branches_that_go_on() {
    for profile in ["prescott", "core2", "nehalem", "skylake"] {
        let machine = small(profile);
        assert_eq!(last_branches(&machine), 0, "{profile}");
        for access in 0..machine.accesses() {
            let machine = small(profile);
            machine.fault_in(access);
            assert_eq!(last_branches(&machine), 1, "{profile} access {access}: the fault is told");
            assert_eq!(machine.msr(IA32_DEBUGCTL), 0, "{profile} access {access}");
            assert_eq!(last_branches(&machine), 0, "{profile} access {access}");
        }
    }
}

#[test]
fn a_drain_between_an_overflow_and_its_record_does_not_end_the_sampling() {
    for (profile, what) in TABLE.into_iter().filter(|(_, what)| what.has_samples()) {
        let period = PERIOD as usize;
        let mut lost = 0;
        for before in period - 5..period + 5 {
            let machine = small(profile);
            let format = store(&machine).unwrap().capabilities().pebs.unwrap().format;
            let mut running = start(&machine, profile, what);
            let mut drained = Drained::new();
            machine.run(before);
            drained.drain(&mut running).unwrap();
            machine.run(20 * period);
            drained.drain(&mut running).unwrap();
            let samples = sampled(&drained.samples, format).len() as u64;
            let loss = running.loss(Half::Pebs).samples;
            assert!(samples + loss >= 19, "{profile} {before}: {samples} samples, {loss} lost");
            lost += loss;
        }
        assert!(lost > 0, "{profile}: no drain hit the place");
    }
}

/// Returns a machine with just enough memory, because there are thousands of them and each fills its memory.
fn small(profile: &str) -> Machine {
    Machine::with_memory(profile, IntelSettings::default(), 512 << 10)
}

/// Checks that the recording is off, that everything was freed, and that the processor wrote only records.
#[track_caller]
fn assert_off(machine: &Machine, what: What, when: &str) {
    assert!(!machine.is_tracing(), "{when}");
    assert_eq!(machine.ram.live(), 0, "{when}: memory was not given back");
    let mut registers = vec![IA32_DEBUGCTL, IA32_DS_AREA];
    if what.has_samples() {
        registers.extend([IA32_PEBS_ENABLE, IA32_PERFEVTSEL0]);
    }
    assert!(registers.iter().all(|register| machine.msr(*register) == 0), "{when}");
    assert_eq!(*machine.ram.strays.borrow(), [], "{when}");
    let violations = machine.violations();
    let wrong = [
        violations.ds_misconfigured,
        violations.circular_interrupts,
        violations.branch_records_dropped,
        violations.samples_dropped,
        violations.ds_page_faults,
    ];
    assert_eq!(wrong, [0; 5], "{when}");
}

fn store(machine: &Machine) -> Result<DsUnit<Registers>, pugmark_kernel::lifecycle::Absent> {
    DsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers())
}

fn start<'a>(machine: &'a Machine, profile: &str, what: What) -> Recording<'a> {
    let unit = store(machine).unwrap();
    let area = machine.area(&unit, what);
    unit.start(&what.config(profile), area).map_err(|failed| failed.error()).unwrap()
}

/// The drained records of each half.
struct Drained {
    branches: Collector,
    samples: Collector,
}

impl Drained {
    fn new() -> Self {
        Self { branches: Collector::new(), samples: Collector::new() }
    }

    fn drain(&mut self, running: &mut Recording<'_>) -> Result<(), GeneralProtection> {
        running.drain(&mut self.branches, &mut self.samples)
    }

    fn interrupt(
        &mut self,
        machine: &Machine,
        handler: &mut Handler,
        running: &mut Recording<'_>,
    ) -> Result<Pmi, GeneralProtection> {
        machine.try_interrupt(handler, &mut running.source(&mut self.branches, &mut self.samples))
    }

    /// Takes the rest of a stopped recording.
    fn finish(&mut self, records: &Records<&Ram>) {
        let halves = [(Half::Bts, &mut self.branches), (Half::Pebs, &mut self.samples)];
        for (half, collector) in halves {
            for chunk in records.chunks(half) {
                match chunk {
                    Chunk::Bytes(bytes) => assert_eq!(collector.bytes(bytes), bytes.len()),
                    Chunk::Gap(gap) => assert!(collector.gap(gap)),
                }
            }
        }
    }
}

/// Detects, starts, serves PMIs, drains, pauses and stops. A step that faults is tried again, and the result must be as
/// without faults. Returns the number of faults.
fn life(machine: &Machine, profile: &str, what: What) -> u32 {
    let mut faults = 0;
    let unit = store(machine).unwrap_or_else(|_| {
        faults += 1;
        // The probe may have left its pattern, if the write that restores the register faulted.
        put_back(machine, IA32_DS_AREA);
        store(machine).expect("a debug store")
    });
    let format = unit.capabilities().pebs.ok().map(|pebs| pebs.format);
    let area = machine.area(&unit, what);
    let mut running = match unit.start(&what.config(profile), area) {
        Ok(running) => running,
        Err(NotStarted::Off { unit, memory: area, .. }) => {
            faults += 1;
            unit.start(&what.config(profile), area).map_err(|failed| failed.error()).unwrap()
        }
        Err(NotStarted::Stuck { .. }) => panic!("one fault"),
    };
    let first = machine.jumps().len();
    let mut handler = Handler::new(Delivery::Nmi);
    if machine.arm(Delivery::Nmi).is_err() {
        faults += 1;
        machine.arm(Delivery::Nmi).unwrap();
    }
    let mut drained = Drained::new();
    for round in 0..2 {
        for _ in 0..700 {
            if machine.jump().is_some() && drained.interrupt(machine, &mut handler, &mut running).is_err() {
                faults += 1;
                machine.arm(Delivery::Nmi).unwrap();
                drained.drain(&mut running).unwrap();
            }
        }
        // A circular buffer is only shown, and shown again at the end.
        if what != CIRCULAR && drained.drain(&mut running).is_err() {
            faults += 1;
            drained.drain(&mut running).unwrap();
        }
        if round == 0 {
            for step in [Recording::suspend, Recording::resume] {
                if step(&mut running).is_err() {
                    faults += 1;
                    step(&mut running).unwrap();
                }
            }
        }
    }
    let stopped = running.stop().unwrap_or_else(|failed| {
        faults += 1;
        failed.running.stop().map_err(|failed| failed.fault).unwrap()
    });
    drained.finish(&stopped.records);
    let ran = &machine.jumps()[first..];
    let Drained { branches, samples } = &drained;
    match what.branches() {
        Some(BufferMode::Circular) => {
            assert!(matches!(branches.gaps[..], [Gap::Wrap(Overwritten::AtLeast(_))]), "{profile}");
            let newest = targets(branches);
            assert!(newest.len() > CAPACITY - 10, "{profile}");
            assert_same(&newest, &ran[ran.len() - newest.len()..], profile);
        }
        Some(BufferMode::Interrupt { .. }) => {
            // A fault that left it off is reported, and nothing ran until the next call.
            assert!(branches.gaps.iter().all(|gap| *gap == Gap::Abandoned), "{profile}");
            assert!(branches.gaps.len() <= faults as usize, "{profile}");
            assert_same(&targets(branches), ran, profile);
        }
        None => assert_eq!(branches.stretches.concat(), []),
    }
    match what.has_samples() {
        true => {
            let samples = sampled(samples, format.unwrap());
            assert!(samples.iter().all(|place| ran.contains(place)), "{profile}");
            let (most, lost) = (ran.len() as u64 / PERIOD, stopped.records.loss(Half::Pebs).samples);
            let events = samples.len() as u64 + lost;
            assert!((most - 2..=most).contains(&events), "{profile} {events}, {lost} lost, {most}");
        }
        false => assert_eq!(samples.stretches.concat(), []),
    }
    faults
}

/// Restores a register, as a kernel does that knows that nothing else uses it.
fn put_back(machine: &Machine, register: u32) {
    // SAFETY: nothing is recorded into memory.
    unsafe { machine.registers().wrmsr(register, 0) }.unwrap();
}

/// Detects, starts, reads twice and stops. A step that faults is tried again. Returns the number of faults.
fn last_branches(machine: &Machine) -> u32 {
    let mut faults = 0;
    let detect = || lbr::LbrUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers());
    let unit = detect().unwrap_or_else(|_| {
        faults += 1;
        // As above.
        put_back(machine, IA32_DEBUGCTL);
        detect().expect("last branch records")
    });
    let depth = usize::from(unit.capabilities().depth());
    let config = LbrConfig::new();
    let mut running = unit.start(&config).unwrap_or_else(|failed| {
        faults += 1;
        let NotStarted::Off { unit, .. } = failed else { panic!("{failed}") };
        unit.start(&config).map_err(|failed| failed.error()).unwrap()
    });
    let mut out = [Branch { from: 0, to: 0, ..EMPTY }; 64];
    for _ in 0..2 {
        machine.run(100);
        let newest: Vec<u64> = match running.last(&mut out) {
            Ok(newest) => newest.iter().map(|branch| branch.to).collect(),
            Err(_) => {
                faults += 1;
                let mut out = [EMPTY; 64];
                // After a fault of the resume they are outdated, but nothing ran since.
                let newest = match running.last(&mut out) {
                    Ok(newest) | Err(NotCurrent::Outdated { why: Gap::Abandoned, before: newest }) => newest,
                    Err(error) => panic!("{error}"),
                };
                newest.iter().map(|branch| branch.to).collect()
            }
        };
        let ran: Vec<u64> = machine.jumps().into_iter().rev().take(depth).collect();
        assert_same(&newest, &ran, "last branches");
    }
    let unit = running.stop().unwrap_or_else(|failed| {
        faults += 1;
        failed.running.stop().map_err(|failed| failed.fault).unwrap()
    });
    drop(unit);
    faults
}

const EMPTY: Branch = Branch {
    from: 0,
    to: 0,
    mispredicted: None,
    in_tsx: false,
    tsx_abort: false,
    cycles: None,
    kind: None,
    events: None,
};
