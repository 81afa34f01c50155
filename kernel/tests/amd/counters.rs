use super::machine::{ALL, CODE, Kernel, PERIOD};
use pugmark_kernel::amd::counters::CountedEvent;

/// Returns the number of instructions up to an address: the program jumps over 16 bytes of each 32.
fn instructions(from: u64, to: u64) -> u64 {
    let until = |ip: u64| {
        let line = (ip - CODE) / 0x20;
        let within = (ip - CODE) % 0x20;
        15 * line + within.min(15)
    };
    until(to) - until(from)
}

#[test]
fn counts_of_instructions_and_branches_are_the_programs() {
    for profile in ALL {
        let mut kernel = Kernel::new(profile, 0);
        kernel.run(77);
        let begin = kernel.machine.ip();
        let user = |event| CountedEvent::new(event, 0).os(false);
        let events = [user(0xc0), user(0xc2), user(0xc4), user(0xc3).os(true).user(false)];
        let running = kernel.counters_unit().start(&events).map_err(|failed| failed.error()).unwrap();
        kernel.counters = Some(running);
        kernel.run(10_000);
        let end = kernel.machine.ip();
        let expected = instructions(begin, end);
        let counters = kernel.counters.as_mut().unwrap();
        assert_eq!(counters.count(0), Ok(Some(expected)), "{profile}");
        let rdpmc = counters.rdpmc(0).unwrap();
        assert_eq!(rdpmc.count(kernel.machine.rdpmc(rdpmc.index())), expected);
        let stopped = kernel.counters.take().unwrap().stop().unwrap().expect(&mut kernel.handler);
        let jumps = (begin..end).filter(|ip| ip % 0x20 == 0xe).count() as u64;
        assert_eq!(stopped.totals(), [expected, jumps, jumps, 0], "{profile}");
        assert_eq!(kernel.machine.violations(), Default::default(), "{profile}");
        assert_eq!(kernel.unclaimed, 0);
    }
}

#[test]
fn each_period_is_over_once_and_the_count_is_exact_however_late_the_interrupt_comes() {
    for profile in ALL {
        for skid in [0, 1, 20, PERIOD - 1, PERIOD, 3 * PERIOD] {
            let mut kernel = Kernel::new(profile, skid);
            let begin = kernel.machine.ip();
            let running =
                kernel.counters_unit().start(&Kernel::events()).map_err(|failed| failed.error()).unwrap();
            kernel.counters = Some(running);
            kernel.run(40 * PERIOD);
            let what = format!("{profile} skid {skid}");
            let expected = instructions(begin, kernel.machine.ip());
            let counters = kernel.counters.as_mut().unwrap();
            assert_eq!(counters.count(0), Ok(Some(expected)), "{what}");
            assert_eq!(counters.count(1), Ok(Some(expected)), "{what}");
            let counts = *counters.overflows();
            let stopped = kernel.counters.take().unwrap();
            let stopped = stopped.stop().unwrap().expect(&mut kernel.handler);
            assert_eq!(stopped.totals(), [expected; 2], "{what}");
            // Each period was taken, skipped, or is found at the stop.
            let unseen = stopped.overflows.unseen;
            assert!(unseen <= 1, "{what}");
            let all = counts.taken + counts.skipped + unseen;
            let due = expected / u64::from(PERIOD);
            assert!(all == due || unseen == 1 && all <= due, "{what}: {counts:?} of {due}");
            assert_eq!(kernel.overflows.len() as u64, counts.taken, "{what}");
            let increasing = kernel.overflows.windows(2).all(|pair| pair[0].count < pair[1].count);
            assert!(increasing, "{what}: none twice");
            // An NMI in flight arrives, and is claimed.
            kernel.run(4 * PERIOD);
            assert_eq!(kernel.unclaimed, 0, "{what}");
            assert_eq!(kernel.machine.violations(), Default::default(), "{what}");
        }
    }
}

#[test]
fn host_only_counts_with_svm_on_and_off() {
    for profile in &ALL[1..] {
        let mut kernel = Kernel::new(profile, 0);
        let event = CountedEvent::new(0xc0, 0).os(false).host_only();
        let begin = kernel.machine.ip();
        kernel.counters =
            Some(kernel.counters_unit().start(&[event]).map_err(|failed| failed.error()).unwrap());
        for svm in [false, true, false] {
            kernel.machine.set_svm(svm);
            kernel.counters.as_mut().unwrap().svm_changed().unwrap();
            kernel.run(1000);
        }
        let expected = instructions(begin, kernel.machine.ip());
        assert_eq!(kernel.counters.as_mut().unwrap().count(0), Ok(Some(expected)), "{profile}");
    }
}
