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
            let expected = LbrFormat::Architectural { linear, mispredicted: true, cycles: true, kind: true };
            assert_eq!(format, expected, "{depths:#x}");
            let running = unit.start(&LbrConfig::new()).map_err(|failed| failed.error()).unwrap();
            assert_eq!(machine.get(LBR_DEPTH), u64::from(most));
            drop(running);
            // It has no MSR_LBR_SELECT.
            assert!(machine.msr.borrow().writes.iter().all(|(address, _)| *address != LBR_SELECT));
        }
    }
}
