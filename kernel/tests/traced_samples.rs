//! PEBS output to Intel PT: the trace has exactly the counter's samples.

mod common;

use common::{Collector, Machine, Registers, assert_same, user_code};
use pugmark_decoder_core::pebs::{PebsBlocks, PebsRecord};
use pugmark_kernel::intel::pebs::{
    Counter, Groups, PebsConfig, PebsRefusal, PreciseEvent, TracedPebsConfig, TracedPebsRefusal,
    TracedPebsUnit,
};
use pugmark_kernel::intel::pt::{Layout, Mode, RegionSize};
use pugmark_kernel::lifecycle::{Absent, InUse, Missing, NotStarted, StartError};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::{Msr, RtitCtl};
use pugmark_kernel::pmi::Pmi;
use pugmark_model::intel::{IntelSettings, IntelViolations};

const FULL: Mode = Mode::StopWhenFull { spare: 1 };
const LARGE: Layout = Layout::topa(RegionSize::K4, 64);
const PEBS_ENABLE: u32 = 0x3f1;
const GLOBAL_CTRL: u32 = 0x38f;
const DATA_CFG: u32 = 0x3f2;
const SELECT0: u32 = 0x186;

fn detect(machine: &Machine) -> Result<TracedPebsUnit<Registers>, Absent> {
    TracedPebsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers())
}

/// Returns a machine whose PMIs come with the instruction that requests them.
fn tremont() -> Machine {
    Machine::new("tremont", IntelSettings { pmi_skid: 0, ..IntelSettings::default() })
}

/// Samples one user instruction in `period`, on counter 1.
fn each(period: u64) -> PebsConfig {
    PebsConfig::new().os(false).general(1, PreciseEvent::INST_RETIRED, period)
}

/// Returns the addresses of the sampled instructions, from records that `whole` accepts.
fn samples(bytes: &[u8], whole: impl Fn(&PebsRecord<'_>) -> bool) -> Vec<u64> {
    let whole = |record: &PebsRecord<'_>| whole(record) && record.applicable_counters == Some(0b10);
    counted(bytes, whole).into_iter().map(|(ip, _)| ip).collect()
}

/// Returns the addresses of the instructions that were sampled, and the counters of each sample.
fn counted(bytes: &[u8], whole: impl Fn(&PebsRecord<'_>) -> bool) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut records = PebsBlocks::new(bytes);
    while let Some(record) = records.next() {
        let record = record.expect("a whole record").record;
        assert!(whole(&record), "{record:?}");
        found.push((record.eventing_ip.expect("an address"), record.applicable_counters.unwrap()));
    }
    found
}

/// Returns the addresses of the jumps that were executed.
fn addresses(machine: &Machine) -> Vec<u64> {
    let targets = machine.executed();
    std::iter::once(0x40_0000).chain(targets).collect()
}

#[test]
fn samples_in_a_trace_are_the_instructions_after_each_overflow() {
    let all = Groups::BASIC.memory(true).registers(true).xmm(true).branches(4);
    let has_all = |record: &PebsRecord<'_>| {
        record.memory.is_some()
            && record.registers.is_some()
            && record.xmm.is_some()
            // The kernel has not turned the last branch records on.
            && record.branches.is_some_and(|branches| branches.iter().len() == 4)
    };
    let basic = |record: &PebsRecord<'_>| {
        record.memory.is_none() && record.registers.is_none() && record.branches.is_none()
    };
    // (period, groups, branches are traced, each record requests a PMI)
    for (period, groups, branches, pmi) in [
        (1, Groups::BASIC, true, false),
        (7, Groups::BASIC, false, false),
        (100, Groups::BASIC, true, true),
        (100, all, true, false),
        (250, all, false, true),
    ] {
        let machine = tremont();
        let mut handler = machine.handler();
        let buffer = machine.buffer(LARGE, FULL);
        let config = user_code().branches(branches);
        let mut tracing = machine.unit().start(&config, buffer).map_err(|failed| failed.error()).unwrap();
        let sampler = detect(&machine).unwrap();
        assert!(sampler.capabilities().trace_output);
        let before = [GLOBAL_CTRL, DATA_CFG].map(|address| machine.msr(address));
        let config = TracedPebsConfig::new(each(period)).groups(groups).pmi_after_each_record(pmi);
        let mut sampling = sampler.start(&config).map_err(|failed| failed.error()).unwrap();
        let mut collector = Collector::new();
        let mut pmis = 0;
        for _ in 0..2000 {
            if machine.jump().is_some() {
                let (mut trace, mut samples) = (tracing.source(&mut collector), sampling.source());
                assert_eq!(machine.interrupt(&mut handler, &mut [&mut trace, &mut samples]), Pmi::Served);
                pmis += 1;
            }
        }
        let lost = sampling.lost();
        let sampler = sampling.stop().map_err(|failed| failed.fault).unwrap();
        let after = [GLOBAL_CTRL, DATA_CFG].map(|address| machine.msr(address));
        assert_eq!((machine.msr(PEBS_ENABLE), machine.msr(SELECT0 + 1), after), (0, 0, before));
        let stopped = tracing.stop().map_err(|failed| failed.fault).unwrap();
        assert_eq!((stopped.loss, lost), (Loss::NONE, 0));
        collector.finish(&stopped.trace);

        let executed = addresses(&machine);
        let expected: Vec<u64> =
            executed[..2000].iter().skip(period as usize).step_by(period as usize + 1).copied().collect();
        let found = if groups == all {
            samples(collector.whole(), has_all)
        } else {
            samples(collector.whole(), basic)
        };
        assert_same(&found, &expected, "samples");
        assert_eq!(pmis, if pmi { expected.len() } else { 0 }, "{period}");
        assert_eq!(machine.violations(), IntelViolations::default(), "{period}");
        drop(sampler);
    }
}

/// Checks that each counter is reloaded with its own period. A fixed-function counter has another reload register
/// than the general-purpose counter of the same number.
#[test]
fn each_counter_keeps_its_own_period_whatever_the_others_have() {
    let event = PreciseEvent::INST_RETIRED;
    // The counters that sample, by their bits in IA32_PEBS_ENABLE, and their periods.
    for counters in [
        &[(32, 7)][..],
        &[(0, 50), (32, 7)],
        &[(32, 50), (0, 7)],
        &[(0, 11), (1, 29), (2, 71), (3, 173)],
        &[(3, 11), (2, 29), (1, 71), (0, 173), (32, 400)],
    ] {
        let machine = tremont();
        let tracing = machine.start(LARGE, FULL);
        let mut config = PebsConfig::new().os(false);
        for &(bit, period) in counters {
            config = match bit {
                32.. => config.fixed(bit - 32, period),
                n => config.general(n, event, period),
            };
        }
        let started = detect(&machine).unwrap().start(&TracedPebsConfig::new(config));
        let sampling = started.map_err(|failed| failed.error()).unwrap();
        machine.run(2000);
        assert_eq!(sampling.lost(), 0);
        sampling.stop().map_err(|failed| failed.fault).unwrap();
        let mut collector = Collector::new();
        collector.finish(&tracing.stop().map_err(|failed| failed.fault).unwrap().trace);
        let executed = addresses(&machine);
        let found = counted(collector.whole(), |_| true);
        // A counter samples the event after `period` of them, unless it has to share another one's record.
        let mut expected = Vec::new();
        let mut left: Vec<(u8, u64, u64)> = counters.iter().map(|&(bit, n)| (bit, n, n)).collect();
        for &ip in &executed[..2000] {
            let due: u64 = left.iter().filter(|(_, _, left)| *left == 0).map(|(bit, ..)| 1 << bit).sum();
            if due != 0 {
                expected.push((ip, due));
            }
            for (_, period, left) in &mut left {
                *left = if *left == 0 { *period } else { *left - 1 };
            }
        }
        assert_eq!(found, expected, "{counters:?}");
        assert!(found.len() > 1000 / counters[0].1 as usize, "{}", found.len());
        assert_eq!(machine.violations(), IntelViolations::default(), "{counters:?}");
    }
}

/// Halts trace and counters by a PMI of the trace. If it comes between an overflow and the event to sample, the counter
/// begins anew, which is counted.
#[test]
fn a_trace_that_is_drained_keeps_its_samples_and_counts_those_that_its_pmis_cost() {
    let mut all_lost = 0;
    for pmi_skid in 40..44 {
        let machine = Machine::new("tremont", IntelSettings { pmi_skid, ..IntelSettings::default() });
        let mut handler = machine.handler();
        let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), FULL);
        let mut tracing =
            machine.unit().start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
        let config = TracedPebsConfig::new(each(3));
        let started = detect(&machine).unwrap().start(&config);
        let mut sampling = started.map_err(|failed| failed.error()).unwrap();
        let mut collector = Collector::new();
        let mut pmis = 0;
        for _ in 0..8000 {
            if machine.jump().is_some() {
                let (mut trace, mut samples) = (tracing.source(&mut collector), sampling.source());
                assert_eq!(machine.interrupt(&mut handler, &mut [&mut trace, &mut samples]), Pmi::Served);
                pmis += 1;
            }
        }
        let lost = sampling.lost();
        sampling.stop().map_err(|failed| failed.fault).unwrap();
        let stopped = tracing.stop().map_err(|failed| failed.fault).unwrap();
        assert_eq!(stopped.loss, Loss::NONE);
        collector.finish(&stopped.trace);
        assert!(pmis > 5, "{pmis}");
        let executed = addresses(&machine);
        let mut at = 0;
        let mut late = 0;
        for ip in samples(collector.whole(), |_| true) {
            let step = executed[at..].iter().position(|address| *address == ip);
            let step = step.expect("an instruction that ran");
            // The counter has overflowed, is stopped and begins anew: three more events.
            assert!(step == 3 || step == 6, "{step}");
            late += u64::from(step == 6);
            at += step + 1;
        }
        assert_eq!(late, lost, "{pmi_skid}");
        all_lost += lost;
    }
    assert!(all_lost > 0);
}

#[test]
fn says_why_samples_cannot_go_into_a_trace() {
    for (profile, why) in [
        ("icelake", Missing::PebsTraceOutput),
        ("skylake", Missing::PebsTraceOutput),
        ("nehalem", Missing::ProcessorTrace),
        ("sapphire-rapids", Missing::Pebs),
    ] {
        let machine = Machine::new(profile, IntelSettings::default());
        assert_eq!(detect(&machine).err(), Some(Absent::Missing(why)), "{profile}");
    }
}

#[test]
fn nothing_is_sampled_while_no_trace_runs_or_as_the_processor_cannot() {
    let no_counter = PebsRefusal::NoCounter(Counter::General(4));
    let groups = Groups::BASIC.branches(33);
    // (a trace runs, configuration, refusal)
    let four = PebsConfig::new().general(4, PreciseEvent::INST_RETIRED, 100);
    for (traced, config, refusal) in [
        (false, TracedPebsConfig::new(each(100)), TracedPebsRefusal::NotTraced(RtitCtl::empty())),
        (
            true,
            TracedPebsConfig::new(PebsConfig::new()),
            TracedPebsRefusal::Counters(PebsRefusal::NoCounters),
        ),
        (true, TracedPebsConfig::new(four), TracedPebsRefusal::Counters(no_counter)),
        (true, TracedPebsConfig::new(each(100)).groups(groups), TracedPebsRefusal::Groups(groups)),
    ] {
        let machine = tremont();
        let tracing = traced.then(|| machine.start(LARGE, FULL));
        let NotStarted::Off { unit, error, .. } = detect(&machine).unwrap().start(&config).unwrap_err()
        else {
            panic!("it is off");
        };
        assert_eq!(error, StartError::Refused(refusal));
        assert_eq!((machine.msr(PEBS_ENABLE), machine.msr(SELECT0 + 1)), (0, 0), "{error}");
        drop((unit, tracing));
    }
}

#[test]
fn a_counter_of_somebody_elses_is_left_alone() {
    for (address, value) in [(PEBS_ENABLE, 1), (SELECT0 + 1, 0x43_00c0)] {
        let machine = tremont();
        let tracing = machine.start(LARGE, FULL);
        // SAFETY: nothing is written to memory.
        unsafe { machine.registers().wrmsr(address, value) }.unwrap();
        let failed = detect(&machine).unwrap().start(&TracedPebsConfig::new(each(100))).unwrap_err();
        let in_use = match address {
            PEBS_ENABLE => InUse::Sampler { pebs_enable: 1 },
            _ => InUse::Counter { counter: Counter::General(1), control: value },
        };
        assert_eq!(failed.error(), StartError::InUse(in_use));
        assert_eq!(machine.msr(address), value);
        drop(tracing);
    }
}

#[test]
fn a_counter_that_somebody_else_enables_meanwhile_stays_enabled() {
    let machine = tremont();
    let tracing = machine.start(LARGE, FULL);
    let started = detect(&machine).unwrap().start(&TracedPebsConfig::new(each(100)));
    let sampling = started.map_err(|failed| failed.error()).unwrap();
    let enabled = machine.msr(GLOBAL_CTRL) | 1 << 32;
    // SAFETY: nothing is written to memory.
    unsafe { machine.registers().wrmsr(GLOBAL_CTRL, enabled) }.unwrap();
    sampling.stop().map_err(|failed| failed.fault).unwrap();
    assert_eq!(machine.msr(GLOBAL_CTRL), enabled);
    drop(tracing);
}

#[test]
fn a_start_loads_each_counter_and_clears_the_requests_that_were_left() {
    // Ovf_PMC1, Ovf_FixedCtr2, OvfBuf.
    const LEFT: u64 = 1 << 1 | 1 << 34 | 1 << 62;
    let machine = tremont();
    let tracing = machine.start(LARGE, FULL);
    // SAFETY: nothing is written to memory.
    unsafe { machine.registers().wrmsr(0x391, LEFT) }.unwrap();
    let config = TracedPebsConfig::new(each(100).fixed(2, 6000).fixed(1, 7000));
    let started = detect(&machine).unwrap().start(&config);
    let sampling = started.map_err(|failed| failed.error()).unwrap();
    assert_eq!(machine.msr(0x38e) & LEFT, 0);
    // IA32_PMC1, IA32_FIXED_CTR0 to 2, and the reload value of each.
    for (value, reload, period) in
        [(0xc2, 0x14c2, 100), (0x309, 0x1309, 1 << 48), (0x30a, 0x130a, 7000), (0x30b, 0x130b, 6000)]
    {
        let expected = ((1 << 48) - period, if period == 1 << 48 { 0 } else { (1 << 48) - period });
        assert_eq!((machine.msr(value), machine.msr(reload)), expected, "{value:#x}");
    }
    drop((sampling, tracing));
}

#[test]
fn each_access_that_faults_in_turn_leaves_the_counters_off_or_is_tried_again() {
    let config = TracedPebsConfig::new(each(100)).pmi_after_each_record(true);
    let mut faults = 0;
    for accesses in 0.. {
        let machine = tremont();
        let tracing = machine.start(LARGE, FULL);
        let unit = detect(&machine).unwrap();
        let before = machine.msr(GLOBAL_CTRL);
        machine.fault_in(accesses);
        let started = unit.start(&config);
        let done = machine.cancel();
        let running = match started {
            Ok(running) => running,
            Err(NotStarted::Off { .. }) => {
                faults += 1;
                assert_eq!((machine.msr(PEBS_ENABLE), machine.msr(GLOBAL_CTRL)), (0, before), "{accesses}");
                drop(tracing);
                continue;
            }
            Err(NotStarted::Stuck { running, .. }) => running,
        };
        machine.fault_in(accesses);
        let stopped = running.stop();
        machine.cancel();
        if let Err(failed) = stopped {
            faults += 1;
            assert!(failed.running.stop().is_ok(), "{accesses}");
        }
        assert_eq!((machine.msr(PEBS_ENABLE), machine.msr(GLOBAL_CTRL)), (0, before), "{accesses}");
        drop(tracing);
        if done {
            break;
        }
    }
    assert!(faults > 15, "{faults}");
}
