//! Tests of the architectural stack as CPUID enumerates it.

use super::*;

#[test]
fn the_architectural_stack_is_as_leaf_1ch_has_it() {
    // CPUID.1CH:EAX[7:0]: bit n, 8 * (n + 1) entries; EAX[31]: linear addresses.
    for depths in 1..=0xff_u32 {
        for linear in [false, true] {
            let machine = LbrMachine::of(SAPPHIRE_RAPIDS);
            let below = machine.cpuid();
            let cpuid = move |leaf, subleaf| match leaf {
                0x1c => CpuIdResult { eax: depths | u32::from(linear) << 31, ebx: 7, ecx: 7, edx: 0 },
                _ => below.cpuid2(leaf, subleaf),
            };
            let unit = LbrUnit::detect(cpuid, machine.clone()).unwrap();
            let most = 8 * (32 - depths.leading_zeros());
            assert_eq!(u32::from(unit.capabilities().depth()), most, "{depths:#x}");
            let format = unit.capabilities().format;
            let expected = LbrFormat::Architectural {
                linear,
                mispredicted: true,
                cycles: true,
                kind: true,
                events: false,
            };
            assert_eq!(format, expected, "{depths:#x}");
            let running = unit.start(&LbrConfig::new()).map_err(|failed| failed.error()).unwrap();
            assert_eq!(machine.get(LBR_DEPTH), u64::from(most));
            drop(running);
            // It has no MSR_LBR_SELECT.
            assert!(machine.msr.borrow().writes.iter().all(|(address, _)| *address != LBR_SELECT));
        }
    }
}

#[test]
fn leaf_1ch_says_whose_events_the_records_count() {
    // (EAX[30], ECX[19:16]), and a stack that is not architectural.
    for (reset, counters) in [(false, 0), (true, 0b1111), (false, 0b0101), (true, 0)] {
        let machine = LbrMachine::of(SAPPHIRE_RAPIDS);
        let below = machine.cpuid();
        let cpuid = move |leaf, subleaf| match leaf {
            0x1c => CpuIdResult {
                eax: u32::from(reset) << 30 | 1,
                ebx: 7,
                ecx: counters << 16 | 0xfff0_0007,
                edx: 0,
            },
            _ => below.cpuid2(leaf, subleaf),
        };
        let mut unit = LbrUnit::detect(cpuid, machine.clone()).unwrap();
        let found = unit.capabilities();
        assert_eq!((u32::from(found.event_counters), found.deep_c_state_reset), (counters, reset));
        for (register, value) in [(0x1500, 0x1000), (0x1600, 0x2000), (0x1200, 0b10_01 << 32)] {
            machine.set(register, value);
        }
        let mut out = [Branch::default()];
        let branch = unit.last(&mut out).unwrap()[0];
        assert_eq!(branch.events, (counters != 0).then_some([1, 2, 0, 0]));
    }
    let older = LbrMachine::of(SKYLAKE).unit();
    assert_eq!((older.capabilities().event_counters, older.capabilities().deep_c_state_reset), (0, false));
}
