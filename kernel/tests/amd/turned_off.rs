//! Counters and IBS units that something else turns off are noticed, reported, and turned on again.

use super::machine::{Kernel, Machine, PERIOD};
use pugmark_kernel::amd::counters::CountedEvent;
use pugmark_kernel::amd::ibs::IbsConfig;

const FETCH_CTL: u32 = 0xc001_1030;
const OP_CTL: u32 = 0xc001_1033;
const GLOBAL_CTL: u32 = 0xc000_0301;
/// IbsFetchEn and IbsOpEn.
const EN: [(u32, u64); 2] = [(FETCH_CTL, 1 << 48), (OP_CTL, 1 << 17)];

/// Returns the event select of counter 0.
fn select(profile: &str) -> u32 {
    if matches!(profile, "k8" | "barcelona") { 0xc001_0000 } else { 0xc001_0200 }
}

fn retired() -> CountedEvent {
    CountedEvent::new(0xc0, 0).os(false)
}

/// An event that changes registers.
type Event = fn(&Machine, &str);

fn clear_enable(machine: &Machine, profile: &str) {
    machine.write(select(profile), machine.msr(select(profile)) & !(1 << 22));
}

fn clear_all(machine: &Machine, profile: &str) {
    machine.write(select(profile), 0);
    machine.write(select(profile) + if select(profile) == 0xc001_0000 { 4 } else { 1 }, 0);
}

fn clear_global(machine: &Machine, _: &str) {
    machine.write(GLOBAL_CTL, 0);
}

#[test]
fn a_counter_that_was_turned_off_says_so_and_goes_on_when_it_is_read() {
    let events: [(&[&str], Event, u64); 3] = [
        (&["k8", "barcelona", "trinity", "zen2", "zen3", "zen4", "zen5"], clear_enable, 1000),
        // The value of the counter's register is lost.
        (&["k8", "barcelona", "trinity", "zen2", "zen3", "zen4", "zen5"], clear_all, 0),
        (&["zen4", "zen5", "zen6"], clear_global, 1000),
    ];
    for (profiles, happens, known) in events {
        for profile in profiles {
            let kernel = Kernel::new(profile, 0);
            let machine = &kernel.machine;
            let mut running = kernel.counters_unit().start(&[retired()]).map_err(|f| f.error()).unwrap();
            machine.run(1000);
            happens(machine, profile);
            machine.run(5000);
            assert_eq!(running.count(0), Ok(Some(known)), "{profile}");
            assert_eq!(running.overflows().turned_off, 1, "{profile}");
            machine.run(700);
            assert_eq!(running.count(0), Ok(Some(known + 700)), "{profile}");
            assert_eq!(running.overflows().turned_off, 1, "{profile}: told once");
            happens(machine, profile);
            let stopped = running.stop().unwrap().expect(&mut { kernel.handler });
            assert_eq!(stopped.overflows.turned_off, 2, "{profile}: seen by the stop");
            assert_eq!(machine.violations(), Default::default(), "{profile}");
        }
    }
}

#[test]
fn a_counter_that_was_turned_off_samples_again_after_the_interrupt_of_another() {
    for profile in ["barcelona", "trinity", "zen3", "zen4"] {
        let mut kernel = Kernel::new(profile, 0);
        let events = [retired().every(PERIOD.into()), retired().every(3 * u64::from(PERIOD))];
        let running = kernel.counters_unit().start(&events).map_err(|failed| failed.error()).unwrap();
        assert_eq!(running.counter(0), Some(0), "the one that is turned off");
        kernel.counters = Some(running);
        kernel.run(PERIOD);
        clear_all(&kernel.machine, profile);
        kernel.run(20 * PERIOD);
        let counts = *kernel.counters.as_ref().unwrap().overflows();
        assert_eq!((counts.turned_off, counts.lost, counts.skipped), (1, 0, 0), "{profile}");
        let of = |event| kernel.overflows.iter().filter(|overflow| overflow.event == event).count();
        // Two periods pass until the other counter's interrupt.
        assert!((17..=20).contains(&of(0)) && of(1) >= 6, "{profile}: {} {}", of(0), of(1));
    }
}

#[test]
fn a_counter_that_another_owner_has_taken_is_left_to_it_until_it_is_free() {
    const OTHER: u64 = 0x0041_0076;
    for profile in ["k8", "zen3", "zen5"] {
        let kernel = Kernel::new(profile, 0);
        let machine = &kernel.machine;
        let mut running = kernel.counters_unit().start(&[retired()]).map_err(|f| f.error()).unwrap();
        machine.run(1000);
        machine.write(select(profile), OTHER);
        machine.run(100);
        assert_eq!(running.count(0), Ok(Some(0)), "{profile}");
        assert_eq!((machine.msr(select(profile)), running.overflows().turned_off), (OTHER, 1), "{profile}");
        let released = profile != "zen3";
        if released {
            machine.write(select(profile), 0);
            assert_eq!(running.count(0), Ok(Some(0)), "{profile}");
            machine.run(50);
            assert_eq!(running.count(0), Ok(Some(50)), "{profile}");
        }
        drop(running);
        assert_eq!(machine.msr(select(profile)), if released { 0 } else { OTHER }, "{profile}");
    }
}

#[test]
fn ibs_units_that_were_turned_off_say_so_and_sample_again() {
    for profile in ["barcelona", "trinity", "zen2", "zen4", "zen6"] {
        for (n, (register, en)) in EN.into_iter().enumerate() {
            for value in [0, 1] {
                let mut kernel = Kernel::new(profile, 0);
                let machine = kernel.machine.clone();
                let config = if n == 0 { IbsConfig::new().fetch(0x10) } else { IbsConfig::new().op(PERIOD) };
                let running = kernel.ibs_unit().start(&config).map_err(|failed| failed.error()).unwrap();
                kernel.ibs = Some(running);
                kernel.run(20 * PERIOD);
                let before = kernel.fetches.len() + kernel.ops.len();
                assert!(before > 2, "{profile}");
                // The enable bit alone, or everything.
                machine.write(register, machine.msr(register) & (!en * value));
                kernel.run(20 * PERIOD);
                assert_eq!(kernel.fetches.len() + kernel.ops.len(), before, "{profile}: off");
                let running = kernel.ibs.as_mut().unwrap();
                running.check().unwrap();
                running.check().unwrap();
                assert_eq!(running.counts().turned_off, 1, "{profile}");
                kernel.run(20 * PERIOD);
                assert!(kernel.fetches.len() + kernel.ops.len() > before + 2, "{profile}: on again");
                // One that nobody looks at is reported by the stop.
                machine.write(register, 0);
                let running = kernel.ibs.take().unwrap();
                assert_eq!(kernel.take_last(running.stop().unwrap()).turned_off, 2, "{profile}");
                assert_eq!(machine.msr(register) & en, 0);
                assert_eq!(machine.violations(), Default::default(), "{profile}");
            }
        }
    }
}

#[test]
fn an_ibs_unit_that_another_owner_has_taken_is_left_to_it_until_it_is_free() {
    let other = [0x123 | 1 << 48, 0x123 | 1 << 17];
    for (n, (register, en)) in EN.into_iter().enumerate() {
        for released in [false, true] {
            let kernel = Kernel::new("zen2", 0);
            let machine = &kernel.machine;
            let unit = kernel.ibs_unit();
            let mut running = unit.start(&Kernel::both()).map_err(|failed| failed.error()).unwrap();
            machine.write(register, 0);
            machine.write(register, other[n]);
            running.check().unwrap();
            assert_eq!(machine.msr(register) & (en | 0xffff), other[n]);
            assert_eq!(running.counts().turned_off, 1);
            if released {
                machine.write(register, 0);
                running.check().unwrap();
                assert_eq!(machine.msr(register) & en, en);
                assert_ne!(machine.msr(register) & 0xffff, 0x123);
            }
            drop(running);
            assert_eq!(machine.msr(register) & (en | 0xffff), if released { 0 } else { other[n] });
        }
    }
}
