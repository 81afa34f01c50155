use super::machine::{CODE, Kernel, PERIOD, WITH_IBS};
use pugmark_kernel::amd::ibs::IbsConfig;

/// Returns whether an instruction of the program begins at this address.
fn is_instruction(address: u64) -> bool {
    address >= CODE && address % 0x20 < 0xf
}

#[test]
fn samples_lie_on_the_programs_instructions_and_come_in_order() {
    for profile in WITH_IBS {
        for skid in [0, 7, 50] {
            let mut kernel = Kernel::new(profile, skid);
            let config = Kernel::both();
            let running = kernel.ibs_unit().start(&config).map_err(|failed| failed.error()).unwrap();
            kernel.ibs = Some(running);
            kernel.run(100 * PERIOD);
            let what = format!("{profile} skid {skid}");
            let running = kernel.ibs.take().unwrap();
            let counts = kernel.take_last(running.stop().unwrap());
            kernel.run(1000);
            assert_eq!((counts.lost, counts.filtered), (0, 0), "{what}");
            // Erratum 1197.
            assert_eq!(counts.unplaced > 0, *profile == *"zen3", "{what}");
            assert_eq!(counts.ops, kernel.ops.len() as u64);
            assert_eq!(counts.fetches, kernel.fetches.len() as u64);
            // Periods are in cycles, and a miss takes more of them; a random start shortens a period by less than 128.
            assert!(kernel.ops.len() >= 50, "{what}: {} ops", kernel.ops.len());
            assert!(kernel.fetches.len() >= 50, "{what}: {} fetches", kernel.fetches.len());
            // The handler's own WRMSRs may be sampled too.
            let own = |address: &&u64| **address < 1 << 63;
            let ops: Vec<_> = kernel.ops.iter().filter(own).collect();
            assert!(ops.iter().all(|address| is_instruction(**address)), "{what}");
            assert!(ops.windows(2).all(|pair| pair[0] < pair[1]), "{what}: no op twice");
            let fetches: Vec<_> = kernel.fetches.iter().filter(own).collect();
            assert!(fetches.windows(2).all(|pair| pair[0] < pair[1]), "{what}: no fetch twice");
            assert_eq!(kernel.unclaimed, 0, "{what}");
            assert_eq!(kernel.machine.violations(), Default::default(), "{what}");
        }
    }
}

#[test]
fn the_period_of_ops_is_what_was_asked_for() {
    for profile in &WITH_IBS[1..] {
        let mut kernel = Kernel::new(profile, 0);
        let config = IbsConfig::new().op(PERIOD).op_counts_dispatched().user_only();
        kernel.ibs = Some(kernel.ibs_unit().start(&config).map_err(|failed| failed.error()).unwrap());
        kernel.run(400 * PERIOD);
        let distance = (kernel.ops[kernel.ops.len() - 1] - kernel.ops[0]) / (kernel.ops.len() as u64 - 1);
        // 15 instructions in 32 bytes; the count starts at a random value from 0 to 127, 64 on average.
        let expected = u64::from(PERIOD - 64) * 32 / 15;
        assert!(distance.abs_diff(expected) < expected / 16, "{profile}: {distance} of {expected}");
    }
}

#[test]
fn kernel_only_keeps_none_of_the_programs() {
    for profile in WITH_IBS {
        let mut kernel = Kernel::new(profile, 0);
        let config = Kernel::both().kernel_only();
        kernel.ibs = Some(kernel.ibs_unit().start(&config).map_err(|failed| failed.error()).unwrap());
        kernel.run(20 * PERIOD);
        assert!(kernel.ops.iter().chain(&kernel.fetches).all(|address| address >> 63 == 1), "{profile}");
        // If the processor filters, the driver has nothing left to drop.
        let filtered = kernel.ibs.as_ref().unwrap().counts().filtered;
        assert_eq!(filtered > 10, profile != "zen6", "{profile}: {filtered}");
        assert_eq!(kernel.unclaimed, 0);
    }
}
