//! The MSRs as software sees them through the processor.

use std::boxed::Box;
use std::ops::RangeInclusive;

use crate::GeneralProtection;
use crate::intel::tests::machine::*;
use crate::intel::{IntelProcessor, IntelProfile, IntelSettings};

#[test]
fn owns_its_msrs_and_no_others() {
    const ALWAYS: [RangeInclusive<u32>; 4] = [0xce..=0xce, 0x1a0..=0x1a0, 0x345..=0x345, 0x38e..=0x392];
    const PT: &[RangeInclusive<u32>] = &[0x560..=0x561, 0x570..=0x572, 0x580..=0x587];
    const NEHALEM: &[RangeInclusive<u32>] = &[
        0xc1..=0xc4,
        0x186..=0x189,
        0x1c8..=0x1c9,
        0x1d9..=0x1d9,
        0x1dd..=0x1de,
        0x3f1..=0x3f1,
        0x600..=0x600,
        0x680..=0x68f,
        0x6c0..=0x6cf,
    ];
    const SKYLAKE: &[RangeInclusive<u32>] = &[0x4c1..=0x4c4, 0x690..=0x69f, 0x6d0..=0x6df, 0xdc0..=0xddf];
    const CORE2: &[RangeInclusive<u32>] = &[
        0x40..=0x43,
        0x60..=0x63,
        0xc1..=0xc2,
        0x186..=0x187,
        0x1c9..=0x1c9,
        0x1d9..=0x1d9,
        0x1dd..=0x1de,
        0x3f1..=0x3f1,
        0x600..=0x600,
    ];
    const FIXED: &[RangeInclusive<u32>] = &[0x309..=0x30b, 0x38d..=0x38d];
    const SLOTS: &[RangeInclusive<u32>] = &[0x30c..=0x30c];
    const PRESCOTT: &[RangeInclusive<u32>] = &[0x1d7..=0x1da, 0x600..=0x600, 0x680..=0x68f, 0x6c0..=0x6cf];
    const ICELAKE: &[RangeInclusive<u32>] = &[0xc5..=0xc8, 0x18a..=0x18d, 0x3f2..=0x3f2, 0x4c5..=0x4c8];
    const TREMONT: &[RangeInclusive<u32>] = &[0x3f2..=0x3f2, 0x1309..=0x130b, 0x14c1..=0x14c4];
    const EIGHT: &[RangeInclusive<u32>] = &[0xc1..=0xc8, 0x186..=0x18d, 0x4c1..=0x4c8];
    // Of each counter of CPUID.23H.1 the value and, if it is a general-purpose one, the event select; of each in 23H.2
    // CFG_B and CFG_C, too.
    const COUGAR_COVE: &[RangeInclusive<u32>] = &[
        0x1900..=0x1901,
        0x1904..=0x1905,
        0x1908..=0x1909,
        0x190c..=0x190d,
        0x1910..=0x1911,
        0x1914..=0x1915,
        0x1918..=0x1919,
        0x191c..=0x191d,
        0x1920..=0x1921,
        0x1924..=0x1925,
        0x1980..=0x1980,
        0x1984..=0x1984,
        0x1988..=0x1988,
        0x198c..=0x198c,
    ];
    const DARKMONT: &[RangeInclusive<u32>] = &[
        0x30d..=0x30f,
        0x1900..=0x1901,
        0x1904..=0x1905,
        0x1908..=0x191f,
        0x1980..=0x1980,
        0x1982..=0x1984,
        0x1986..=0x1988,
        0x1990..=0x1990,
        0x1994..=0x1994,
        0x1998..=0x1998,
    ];
    type Row = (&'static str, &'static [&'static [RangeInclusive<u32>]]);
    let rows: [Row; 11] = [
        ("skylake", &[PT, NEHALEM, SKYLAKE, FIXED]),
        ("nehalem", &[NEHALEM, FIXED]),
        ("core2", &[CORE2, FIXED]),
        ("prescott", &[PRESCOTT]),
        ("pentium-m", &[&[0x1d9..=0x1d9, 0x600..=0x600]]),
        ("broadwell", &[PT, NEHALEM, &[0x4c1..=0x4c4], FIXED]),
        ("icelake", &[PT, NEHALEM, SKYLAKE, ICELAKE, FIXED, SLOTS]),
        ("tremont", &[PT, NEHALEM, SKYLAKE, TREMONT, FIXED]),
        ("sapphire-rapids", &[PT, EIGHT, FIXED, SLOTS]),
        ("cougar-cove", &[PT, EIGHT, FIXED, SLOTS, COUGAR_COVE]),
        ("darkmont", &[PT, EIGHT, FIXED, DARKMONT]),
    ];
    for (name, owned) in rows {
        let machine = Machine::new(name, IntelSettings::default());
        let owns =
            |msr: u32| ALWAYS.iter().chain(owned.iter().copied().flatten()).any(|list| list.contains(&msr));
        for msr in 0..0x2000 {
            assert_eq!(machine.processor.owns_msr(msr), owns(msr), "{name} {msr:x}");
        }
        assert!(!machine.processor.owns_msr(0xc000_0080));
    }
}

#[test]
fn reset_values() {
    // Profile, MSR, value.
    let rows: [(&str, u32, Option<u64>); 40] = [
        ("prescott", 0xce, None),
        ("pentium-m", 0xce, None),
        ("core2", 0xce, None),
        ("nehalem", 0xce, Some(20 << 8)),
        ("broadwell", 0xce, Some(26 << 8)),
        ("skylake", 0xce, Some(30 << 8)),
        ("sapphire-rapids", 0x1a0, Some(0x5_1881)),
        ("icelake", 0x1a0, Some(0x5_0081)),
        ("skylake", 0x1a0, Some(0x5_0081)),
        ("nehalem", 0x1a0, Some(0x5_0081)),
        ("core2", 0x1a0, Some(0x5_0081)),
        ("prescott", 0x1a0, Some(0x5_1081)),
        ("core2", 0x345, Some(0xc1)),
        ("nehalem", 0x345, Some(0x11c3)),
        ("prescott", 0x345, None),
        ("prescott", 0x38e, None),
        ("core2", 0x38f, Some(0b11)),
        ("skylake", 0x38f, Some(0b1111)),
        ("icelake", 0x38f, Some(0xff)),
        ("skylake", 0x345, Some(0x33c5)),
        ("icelake", 0x345, Some(0x74c5)),
        ("tremont", 0x345, Some(0x1_74c5)),
        ("tremont", 0x38f, Some(0xf)),
        ("tremont", 0xce, Some(20 << 8)),
        ("skylake", 0x38e, Some(0)),
        ("skylake", 0x391, Some(0)),
        ("skylake", 0x392, Some(0)),
        ("broadwell", 0x392, None),
        ("broadwell", 0x391, None),
        ("broadwell", 0x560, Some(0)),
        ("broadwell", 0x561, Some(0x7f)),
        ("broadwell", 0x570, Some(0)),
        ("broadwell", 0x571, Some(0)),
        ("broadwell", 0x572, Some(0)),
        ("broadwell", 0x580, None),
        ("skylake", 0x580, Some(0)),
        ("skylake", 0x583, Some(0)),
        ("skylake", 0x584, None),
        ("sapphire-rapids", 0x587, Some(0)),
        ("skylake", 0x572, Some(0)),
    ];
    for (profile, msr, value) in rows {
        let machine = Machine::new(profile, IntelSettings::default());
        let read = machine.processor.read_msr(msr);
        assert_eq!(read, value.ok_or(GeneralProtection), "{profile} {msr:x}");
    }
}

#[test]
fn all_other_registers_are_0_after_reset() {
    // MSR_PLATFORM_INFO, IA32_MISC_ENABLE, IA32_PERF_CAPABILITIES, IA32_PERF_GLOBAL_CTRL, IA32_RTIT_OUTPUT_MASK_PTRS.
    const SET: [u32; 5] = [0xce, 0x1a0, 0x345, 0x38f, MASK_PTRS];
    for profile in IntelProfile::all() {
        let processor = IntelProcessor::new(profile, IntelSettings::default());
        for msr in (0..0x2000).filter(|msr| !SET.contains(msr)) {
            if processor.owns_msr(msr)
                && let Ok(value) = processor.read_msr(msr)
            {
                assert_eq!(value, 0, "{} {msr:#x}", profile.name);
            }
        }
    }
}

#[test]
fn constants_cannot_be_written() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    for (msr, value, legal) in [
        (0xce, 0, false),
        (0x345, 0, false),
        (0x38e, 0, false),
        (0x1a0, 0x5_0081, true),
        (0x1a0, 0x5_1881, true),
        (0x1a0, 0, true),
        (0x1a0, 1 << 1, false),
        (0x1a0, 1 << 63, false),
    ] {
        assert_eq!(machine.try_write(msr, value).is_ok(), legal, "{msr:x} {value:x}");
    }
    assert_eq!(machine.read(0x1a0), 0x80, "what is read-only stays");
}

#[test]
fn written_values_read_back() {
    let mut machine = Machine::new("sapphire-rapids", IntelSettings::default());
    // MSR, written, read.
    for (msr, written, read) in [
        (BASE, 0x12_3480, 0x12_3480),
        (MASK_PTRS, 0x1234_5678_0000_0000, 0x1234_5678_0000_007f),
        (MASK_PTRS, 0xffff_ffff_ffff_ff80, u64::MAX),
        (STATUS, 0x1_2345_0000_00f7, 0x1_2345_0000_00f0),
        (0x572, 0xffff_ffff_ffff_ffe0, 0xffff_ffff_ffff_ffe0),
        (0x587, 0x7fff_1234_5678, 0x7fff_1234_5678),
        (CTL, 0x2004, 0x2004),
    ] {
        let result = machine.try_write(msr, written);
        if written & 1 << 49 != 0 && msr == STATUS {
            assert!(result.is_err());
            continue;
        }
        assert_eq!(result, Ok(()), "{msr:x}");
        assert_eq!(machine.read(msr), read, "{msr:x}");
    }
}

#[test]
fn while_tracing_only_ctl_can_be_written() {
    let mut machine = Machine::new("sapphire-rapids", IntelSettings::default());
    machine.start(ALL);
    for msr in [BASE, MASK_PTRS, STATUS, 0x572, 0x580, 0x581, 0x582, 0x583, 0x584, 0x585, 0x586, 0x587] {
        let value = machine.read(msr);
        assert_eq!(machine.try_write(msr, value & !7), Err(GeneralProtection), "{msr:x}");
    }
    assert_eq!(machine.try_write(CTL, ALL | 1 << 11), Err(GeneralProtection));
    assert_eq!(machine.read(CTL), ALL);
    assert_eq!(machine.try_write(CTL, ALL), Ok(()));
    assert!(machine.processor.needs_each_instruction());
    assert_eq!(machine.try_write(CTL, 0x0400), Ok(()));
    assert_eq!(machine.read(CTL), 0x0400);
    assert!(!machine.processor.needs_each_instruction());
    assert_eq!(machine.try_write(STATUS, 0), Ok(()));
}

#[test]
fn status_shows_the_enables_and_ignores_writes_of_them() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(STATUS, 7);
    assert_eq!(machine.read(STATUS), 0);
    machine.start(ALL);
    assert_eq!(machine.read(STATUS) & 0x3f, 0b111);
    machine.far(SYSCALL, machine.user(0x1000));
    assert_eq!(machine.read(STATUS) & 0x3f, 0b111);
    machine.stop();
    assert_eq!(machine.read(STATUS) & 0x3f, 0b011, "TriggerEn goes, the others stand still");
    machine.start(0x2005);
    assert_eq!(machine.read(STATUS) & 0x3f, 0b101);
}

#[test]
fn filter_en_shows_where_ips_can_be_filtered() {
    for (profile, status) in
        [("broadwell", 0b110), ("skylake", 0b111), ("icelake", 0b111), ("sapphire-rapids", 0b111)]
    {
        let mut machine = Machine::new(profile, IntelSettings::default());
        machine.ram[0x1000..0x1008].copy_from_slice(&(RANGE as u64).to_le_bytes());
        machine.ram[0x1008..0x1010].copy_from_slice(&0x1001u64.to_le_bytes());
        machine.write(BASE, 0x1000);
        machine.write(MASK_PTRS, 0x7f);
        machine.start(ALL | TOPA);
        assert_eq!(machine.read(STATUS) & 0x3f, status, "{profile}");
        machine.go(JMP_RAX, 0x40_1000);
        machine.stop();
        assert!(machine.body().ends_with("; TIP 401000"), "{profile}: inside the processor it is set");
    }
}

#[test]
fn a_wrmsr_that_leaves_tracing_on_is_an_instruction_like_others() {
    let mut machine = Machine::new("skylake", IntelSettings { visibility: 0, ..IntelSettings::default() });
    machine.start(ALL | 1 << 9 | 3 << 14);
    machine.tsc = 1000;
    machine.write(0x390, 0);
    machine.tsc = 2000;
    machine.stop();
    assert_eq!(machine.body(), "MODE.Exec 64; TIP.PGE 400000; MTC 1; MTC 2");
}

#[test]
fn the_wrmsr_that_switches_a_unit_on_is_not_seen_by_it() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.start(ALL);
    // Counter 0 counts retired instructions at every level.
    machine.write(0x186, 0x43_00c0);
    assert_eq!(machine.read(0xc1), 0);
    machine.write(0x390, 0);
    assert_eq!(machine.read(0xc1), 1);
}

#[test]
fn a_transfer_that_no_branch_explains_is_counted() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.start(ALL);
    for (bytes, to, count) in [
        (NOP, 0x40_0001, 0),
        (JMP_RAX, 0x40_1000, 0),
        (MOV_CR3, 0x40_1003, 0),
        (NOP, 0x40_1003, 1),
        (MOV_CR3, 0x40_1000, 2),
        (&[0x06], 0x40_1001, 3),
    ] {
        machine.go(bytes, to);
        assert_eq!(machine.processor.violations().unexplained_transfers, count, "{bytes:02x?}");
    }
}

#[test]
fn without_output_to_memory_its_registers_fault() {
    // The trace transport subsystem is the only output.
    let skylake = IntelProfile::by_name("skylake").expect("skylake");
    let fabric =
        IntelProfile { pt_outputs: 1 << 3, counters: None, lbr: None, debug_store: None, ..*skylake };
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.processor = IntelProcessor::new(Box::leak(Box::new(fabric)), IntelSettings::default());
    for msr in [BASE, MASK_PTRS] {
        assert_eq!(machine.processor.read_msr(msr), Err(GeneralProtection), "{msr:x}");
        assert_eq!(machine.try_write(msr, 0), Err(GeneralProtection), "{msr:x}");
    }
    assert_eq!(machine.try_write(CTL, 0x2005 | 1 << 6), Ok(()));
}

/// Checks SDM vol. 3, Performance Monitoring, "IA32_PERF_GLOBAL_INUSE MSR".
#[test]
fn counters_that_are_set_up_are_in_use() {
    const PMI: u64 = 1 << 63;
    // The register that is written, its value, IA32_PERF_GLOBAL_INUSE.
    for (number, value, in_use) in [
        (0x186, 0xc0, 1 << 0),
        (0x189, 0x01, 1 << 3),
        // No event, regardless of the other bits.
        (0x186, 0x43_0000, 0),
        (0x186, 0x10_00c0, 1 << 0 | PMI),
        (0x38d, 0x001, 1 << 32),
        (0x38d, 0x020, 1 << 33),
        (0x38d, 0x080, PMI),
        (0x38d, 0xb00, 1 << 34 | PMI),
        (0x3f1, 0x4, PMI),
        (0x3f1, 0x2_0000_0000, PMI),
        (0x3f1, 0, 0),
    ] {
        let mut machine = Machine::new("tremont", IntelSettings::default());
        machine.write(number, value);
        assert_eq!(machine.read(0x392), in_use, "{number:x} {value:x}");
        assert_eq!(machine.try_write(0x392, 0), Err(GeneralProtection));
    }
}

#[test]
fn rdpmc_reads_the_counters_that_there_are() {
    const FIXED: u32 = 1 << 30;
    for (profile, counters, fixed) in
        [("prescott", 0, 0), ("core2", 2, 3), ("skylake", 4, 3), ("icelake", 8, 4), ("tremont", 4, 3)]
    {
        let mut machine = Machine::new(profile, IntelSettings::default());
        for index in 0..counters {
            machine.write(0xc1 + index, u64::from(index) + 77);
        }
        for index in 0..fixed {
            machine.write(0x309 + index, u64::from(index) + 99);
        }
        for index in (0..10).chain(FIXED..FIXED + 5).chain([FIXED | 0x84, FIXED | 1 << 29, u32::MAX]) {
            let expected = match index {
                _ if index < counters => Ok(u64::from(index) + 77),
                _ if (FIXED..FIXED + fixed).contains(&index) => Ok(u64::from(index - FIXED) + 99),
                _ => Err(GeneralProtection),
            };
            assert_eq!(machine.processor.rdpmc(index), expected, "{profile} {index:#x}");
        }
    }
}

#[test]
fn init_masks_the_entry_of_the_counters_and_no_other_register_of_the_local_apic_is_here() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    let processor = &mut machine.processor;
    for offset in (0..0x1000).step_by(0x10) {
        assert_eq!(processor.owns_apic(offset), offset == 0x340, "{offset:#x}");
        assert_eq!(processor.adjust_apic(offset, 0x5_0014), 0x5_0014, "{offset:#x}");
    }
    assert_eq!(processor.read_apic(0x340), 1 << 16);
    processor.write_apic(0x340, 0x4f0);
    assert_eq!(processor.read_apic(0x340), 0x4f0);
    machine.init(None);
    assert_eq!(machine.processor.read_apic(0x340), 1 << 16);
}
