//! Version 6 of architectural performance monitoring: counters by CPUID.23H, their registers, Auto Counter Reload.

use crate::intel::tests::machine::*;
use crate::intel::{IntelProfile, IntelSettings};
use crate::{CpuidResult, GeneralProtection, Pmi};

const GLOBAL_STATUS: u32 = 0x38e;
const GLOBAL_CTRL: u32 = 0x38f;
const FIXED_CTRL: u32 = 0x38d;
/// IA32_PERFEVTSELx: EN, OS, USR.
const COUNTS: u64 = 0x43 << 16;
const INT: u64 = 1 << 20;
const INSTRUCTIONS: u64 = COUNTS | 0xc0;
const BRANCHES: u64 = COUNTS | 0xc4;

/// Returns the number of a general-purpose counter's register: 0 CTR, 1 CFG_A, 2 CFG_B, 3 CFG_C.
const fn general(index: u32, register: u32) -> u32 {
    0x1900 + 4 * index + register
}

const fn fixed(index: u32, register: u32) -> u32 {
    0x1980 + 4 * index + register
}

fn machine(profile: &str) -> Machine {
    Machine::new(profile, IntelSettings { pmi_skid: 0, ..IntelSettings::default() })
}

/// Typed from the dump of a Core 5 320, but without architectural PEBS and LBRs, and events that the model lacks.
#[test]
fn cpuid_enumerates_the_counters_of_each_kind_of_core() {
    let rows: [(&str, u32, u32, [u32; 4]); 14] = [
        ("cougar-cove", 1, 0, [0xd_0651, 0, 0x8000, 0]),
        ("cougar-cove", 0x0a, 0, [0x0730_0806, 0x18, 7, 0x8603]),
        ("cougar-cove", 0x14, 0, [1, 0x15f, 7, 0]),
        ("cougar-cove", 0x14, 1, [0x0249_0002, 0x003f_003f, 0, 0]),
        ("cougar-cove", 0x15, 0, [2, 0x82, 0x0249_f000, 0]),
        ("cougar-cove", 0x16, 0, [2500, 4600, 100, 0]),
        ("cougar-cove", 0x23, 0, [0x0b, 3, 0, 0]),
        ("cougar-cove", 0x23, 1, [0x3ff, 0xf, 0, 0]),
        ("cougar-cove", 0x23, 2, [0; 4]),
        ("cougar-cove", 0x23, 3, [0xe7, 0, 0, 0]),
        ("darkmont", 0x23, 0, [0x0f, 3, 8, 0]),
        ("darkmont", 0x23, 1, [0xff, 0x77, 0, 0]),
        ("darkmont", 0x23, 2, [0xfc, 3, 0xfc, 3]),
        ("darkmont", 0x23, 3, [0x67, 0, 0, 0]),
    ];
    for (name, leaf, subleaf, [eax, ebx, ecx, edx]) in rows {
        let answer = machine(name).processor.cpuid(leaf, subleaf, CpuidResult::default());
        assert_eq!(answer, CpuidResult { eax, ebx, ecx, edx }, "{name} {leaf:x}.{subleaf}");
    }
    for profile in IntelProfile::all().iter().filter(|profile| profile.perfmon_version < 6) {
        let answer = machine(profile.name).processor.cpuid(0x23, 1, CpuidResult::default());
        assert_eq!(answer, CpuidResult::default(), "{}", profile.name);
    }
}

#[test]
fn each_counter_that_is_enumerated_has_its_registers_and_no_other() {
    for (name, counters, fixed_counters, reloadable) in [
        ("cougar-cove", 0x3ff_u32, 0xf_u32, [0, 0]),
        ("darkmont", 0xff, 0x77, [0xfc, 3]),
        ("icelake", 0, 0, [0, 0]),
    ] {
        let mut m = machine(name);
        for number in 0x1900..0x1a00_u32 {
            let (index, register) = (number % 0x80 / 4, number % 4);
            let has = |bits: u32| index < 32 && bits >> index & 1 != 0;
            let [of, reloads] =
                if number < 0x1980 { [counters, reloadable[0]] } else { [fixed_counters, reloadable[1]] };
            let exists = match register {
                0 => has(of),
                1 => number < 0x1980 && has(of),
                _ => has(reloads),
            };
            assert_eq!(m.processor.owns_msr(number), exists, "{name} {number:#x}");
        }
        // The ranges before version 6 have eight counters.
        if counters != 0 {
            assert_eq!(
                [0xc8, 0xc9, 0x18d, 0x18e].map(|number| m.processor.owns_msr(number)),
                [true, false, true, false]
            );
            let all = u64::from(counters) | u64::from(fixed_counters) << 32;
            m.write(GLOBAL_CTRL, all);
            for absent in [1 << 10, 1 << 31, 1 << 39, 1 << 48, 1 << 63] {
                assert_eq!(
                    m.try_write(GLOBAL_CTRL, all | absent),
                    Err(GeneralProtection),
                    "{name} {absent:#x}"
                );
            }
            // OS, USR and PMI of each fixed-function counter; AnyThread is deprecated.
            for index in 0..16 {
                let exists = fixed_counters >> index & 1 != 0;
                let expected = if exists { Ok(()) } else { Err(GeneralProtection) };
                assert_eq!(m.try_write(FIXED_CTRL, 0xb << (4 * index)), expected, "{name} {index}");
                assert_eq!(
                    m.try_write(FIXED_CTRL, 4 << (4 * index)),
                    Err(GeneralProtection),
                    "{name} {index}"
                );
            }
        }
    }
}

#[test]
fn both_ranges_are_the_same_registers() {
    let mut m = machine("darkmont");
    m.write(GLOBAL_CTRL, 0);
    m.write(0x189, INSTRUCTIONS);
    m.write(0x4c4, 0x12_3456_789a);
    assert_eq!((m.read(general(3, 1)), m.read(general(3, 0))), (INSTRUCTIONS, 0x12_3456_789a));
    m.write(general(3, 1), BRANCHES);
    m.write(general(3, 0), 5);
    assert_eq!((m.read(0x189), m.read(0xc4)), (BRANCHES, 5));
    m.write(fixed(1, 0), 9);
    assert_eq!((m.read(0x30a), m.processor.rdpmc(0x4000_0001)), (9, Ok(9)));
    // All bits of a counter's width can be written, and no more.
    assert_eq!(m.try_write(general(0, 0), 1 << 48), Err(GeneralProtection));
    // UnitMask2 and EQ are enumerated; other bits above 31 are not.
    m.write(general(0, 1), INSTRUCTIONS | 0xff << 40 | 1 << 36);
    for bit in [32, 33, 34, 35, 37, 38, 39, 48] {
        assert_eq!(m.try_write(general(0, 1), INSTRUCTIONS | 1 << bit), Err(GeneralProtection), "{bit}");
    }
    assert_eq!(machine("icelake").try_write(0x186, INSTRUCTIONS | 1 << 40), Err(GeneralProtection));
}

#[test]
fn the_tenth_counter_counts_and_is_read_by_rdpmc() {
    let mut m = machine("cougar-cove");
    m.write(general(9, 1), BRANCHES);
    m.write(GLOBAL_CTRL, 1 << 9);
    m.next(NOP);
    m.go(JMP_RAX, 0x40_1000);
    m.next(JZ);
    m.write(GLOBAL_CTRL, 0);
    assert_eq!((m.read(general(9, 0)), m.processor.rdpmc(9)), (2, Ok(2)));
    assert_eq!(
        (m.processor.rdpmc(10), m.processor.rdpmc(0x4000_0004)),
        (Err(GeneralProtection), Err(GeneralProtection))
    );
    // With another event in UnitMask2 it does not count.
    m.write(general(9, 1), BRANCHES | 1 << 40);
    assert_eq!(m.processor.event_that_is_not_counted(general(9, 1)), Some(0xc4 | 1 << 40));
}

/// Counts branches in counter 2 and instructions in counter 3, which ten instructions reload.
fn rate(branches: i64) -> Machine {
    let mut m = machine("darkmont");
    m.processor.write_apic(0x340, 0x400);
    for (counter, select, period, causes) in
        [(2, BRANCHES | INT, branches, 0b1000), (3, INSTRUCTIONS, 10, 0b1100)]
    {
        m.write(general(counter, 1), select);
        m.write(general(counter, 2), causes);
        m.write(general(counter, 3), u64::from((-period) as u32));
        m.write(general(counter, 0), (-period) as u64 & ((1 << 48) - 1));
    }
    m.write(GLOBAL_CTRL, 0b1100);
    m
}

/// Executes ten instructions, `branches` of which are branches. Returns whether there was an interrupt.
fn ten(m: &mut Machine, branches: u64) -> bool {
    let mut interrupted = false;
    for n in 0..10 {
        if n < branches {
            m.next(JZ)
        } else {
            m.next(NOP)
        }
        interrupted |= m.processor.take_interrupt() == Some(Pmi::Nmi);
    }
    interrupted
}

/// As perf does with "the rate of branches exceeds a fifth of instructions".
#[test]
fn a_counter_is_sampled_only_if_it_overflows_before_another() {
    let mut m = rate(3);
    for _ in 0..5 {
        assert!(!ten(&mut m, 2));
    }
    assert_eq!(m.read(GLOBAL_STATUS), 0, "a counter that reloads itself does not show its overflow");
    assert!(ten(&mut m, 3));
    assert_eq!(m.read(GLOBAL_STATUS), 0b100);
    // The branches' overflow reloaded the instructions, at the third instruction of the ten.
    m.write(GLOBAL_CTRL, 0);
    let reloaded = (1_u64 << 48) - 10;
    assert_eq!(m.read(general(3, 0)), reloaded + 7);
    // The branches have overflowed, and are not reloaded by themselves.
    assert_eq!(m.read(general(2, 0)), 0);
}

#[test]
fn an_interrupt_of_a_counter_that_reloads_itself_has_no_status() {
    let mut m = machine("darkmont");
    m.processor.write_apic(0x340, 0x400);
    m.write(FIXED_CTRL, 0xb);
    m.write(fixed(0, 2), 1 << 32);
    m.write(fixed(0, 3), u64::from(-3_i32 as u32));
    m.write(fixed(0, 0), (1 << 48) - 3);
    m.write(GLOBAL_CTRL, 1 << 32);
    let interrupts = (0..6).filter(|_| {
        m.next(NOP);
        m.processor.take_interrupt().is_some_and(|_| {
            m.processor.write_apic(0x340, 0x400);
            true
        })
    });
    assert_eq!(interrupts.count(), 2);
    m.write(GLOBAL_CTRL, 0);
    assert_eq!((m.read(GLOBAL_STATUS), m.read(fixed(0, 0))), (0, (1 << 48) - 3));
}

#[test]
fn masks_have_causes_and_reload_values_32_bits() {
    let mut m = machine("darkmont");
    m.write(general(2, 2), 0xfc | 3 << 32);
    for reserved in [1, 1 << 1, 1 << 8, 1 << 34, 1 << 63] {
        assert_eq!(m.try_write(general(2, 2), reserved), Err(GeneralProtection), "{reserved:#x}");
    }
    m.write(general(2, 3), 0xffff_ffff);
    assert_eq!(m.try_write(general(2, 3), 1 << 32), Err(GeneralProtection));
    assert_eq!((m.read(general(2, 2)), m.read(general(2, 3))), (0xfc | 3 << 32, 0xffff_ffff));
}
