use alloc::boxed::Box;
use alloc::string::ToString;

use pugmark_model::intel::IntelViolations;
use pugmark_model::{Context, CpuidResult, ExecMode, GeneralProtection, Init, PhysMemory, Pmi, Retired};

use super::*;
use crate::guest::Segment;

fn hardware(name: &str) -> Hardware {
    let profile = Profile::by_name(name).expect(name);
    let northbridge = Box::leak(Box::new(profile.northbridge()));
    let settings = IntelSettings { pmi_skid: 0, ..IntelSettings::default() };
    Hardware::new(profile, settings, AmdSettings { skid: 0, ..AmdSettings::default() }, northbridge)
}

/// A memory without any bytes, in which all addresses are identity-mapped.
struct EmptyMemory;

impl PhysMemory for EmptyMemory {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn write(&mut self, _: u64, _: &[u8]) -> bool {
        false
    }
}

fn step(ip: u64, bytes: &[u8]) -> Retired<'_> {
    let at = |ip| Context { ip, cs_base: 0, cr3: 0, cpl: 0, mode: ExecMode::Bits64, iflag: true };
    Retired { before: at(ip), after: at(ip + bytes.len() as u64), bytes, tsc: 0, operand: 0 }
}

fn write(hardware: &mut Hardware, msr: u32, value: u64) {
    assert!(hardware.owns_msr(msr), "{msr:#x}");
    hardware.write_msr(msr, value, &step(0x1000, &[0x0f, 0x30]), &mut EmptyMemory).expect("WRMSR");
}

#[test]
fn profiles_are_found_by_name_if_they_run_64_bit_code() {
    for (name, found) in
        [("skylake", true), ("zen4", true), ("k8", true), ("pentium-m", false), ("zen1", false)]
    {
        assert_eq!(Profile::by_name(name).is_some(), found, "{name}");
    }
    for (name, present) in [("skylake", false), ("zen4", false), ("barcelona", true)] {
        assert_eq!(Profile::by_name(name).expect(name).northbridge().is_present(), present, "{name}");
    }
}

#[test]
fn each_maker_has_its_name_its_msrs_and_its_instructions() {
    for (name, vendor, own, other, sysenter) in
        [("skylake", *b"Genu", 0x570, 0xc001_1033, true), ("zen4", *b"Auth", 0xc001_1033, 0x570, false)]
    {
        let hardware = hardware(name);
        let ebx = hardware.cpuid(0, 0, CpuidResult::default()).ebx;
        assert_eq!(ebx, u32::from_le_bytes(vendor), "{name}");
        assert_eq!((hardware.owns_msr(own), hardware.owns_msr(other)), (true, false), "{name}");
        assert_eq!(hardware.msr_handler(other), MsrHandler::Absent, "{name}");
        assert_eq!(hardware.has_sysenter_in_long_mode(), sysenter, "{name}");
    }
}

/// Checks which MSRs of Intel's counting and tracing hardware exist. Typed from vol. 4's tables: an MSR exists if CPUID
/// and IA32_PERF_CAPABILITIES of the profile report the feature to which it belongs.
#[test]
fn msrs_of_hardware_that_a_processor_lacks_fault() {
    type Row = (&'static str, u32, u32, &'static [&'static str]);
    const EVERY: &[&str] = &[
        "prescott",
        "core2",
        "nehalem",
        "broadwell",
        "skylake",
        "icelake",
        "tremont",
        "sapphire-rapids",
        "cougar-cove",
        "darkmont",
    ];
    const FROM_CORE2: &[&str] = EVERY.split_at(1).1;
    const FROM_NEHALEM: &[&str] = EVERY.split_at(2).1;
    const PT: &[&str] = EVERY.split_at(3).1;
    const DS: &[&str] = EVERY.split_at(7).0;
    const COUNTERS: &[&str] = DS.split_at(1).1;
    const FOUR_COUNTERS: &[&str] = DS.split_at(2).1;
    const EIGHT_COUNTERS: &[&str] = &["icelake", "sapphire-rapids", "cougar-cove", "darkmont"];
    const RANGES: &[&str] = EVERY.split_at(4).1;
    const STACK: &[&str] = &["prescott", "nehalem", "broadwell", "skylake", "icelake", "tremont"];
    const INFO: &[&str] = DS.split_at(4).1;
    // Name, first and last MSR, the processors that have them.
    let rows: [Row; 50] = [
        ("MSR_LASTBRANCH_x of Core 2, from", 0x40, 0x43, &["core2"]),
        ("of Core Duo, from", 0x44, 0x47, &[]),
        ("of Core 2, to", 0x60, 0x63, &["core2"]),
        ("to", 0x64, 0x67, &[]),
        ("IA32_PMC0, 1", 0xc1, 0xc2, FROM_CORE2),
        ("IA32_PMC2, 3", 0xc3, 0xc4, FROM_NEHALEM),
        ("IA32_PMC4 to 7", 0xc5, 0xc8, EIGHT_COUNTERS),
        ("MSR_PLATFORM_INFO", 0xce, 0xce, FROM_NEHALEM),
        ("IA32_PERFEVTSEL0, 1", 0x186, 0x187, FROM_CORE2),
        ("IA32_PERFEVTSEL2, 3", 0x188, 0x189, FROM_NEHALEM),
        ("IA32_PERFEVTSEL4 to 7", 0x18a, 0x18d, EIGHT_COUNTERS),
        ("IA32_MISC_ENABLE", 0x1a0, 0x1a0, EVERY),
        ("MSR_LBR_SELECT", 0x1c8, 0x1c8, FOUR_COUNTERS),
        ("MSR_LASTBRANCH_TOS", 0x1c9, 0x1c9, COUNTERS),
        ("NetBurst's MSR_LER_FROM_LIP, _TO_LIP", 0x1d7, 0x1d8, &["prescott"]),
        ("NetBurst's MSR_LASTBRANCH_TOS", 0x1da, 0x1da, &["prescott"]),
        ("MSR_LASTBRANCH_0, 1 of models 0 to 2", 0x1db, 0x1dc, &[]),
        ("MSR_LER_FROM_LIP, _TO_LIP", 0x1dd, 0x1de, COUNTERS),
        ("IA32_FIXED_CTR0 to 2", 0x309, 0x30b, FROM_CORE2),
        ("IA32_FIXED_CTR3", 0x30c, 0x30c, &["icelake", "sapphire-rapids", "cougar-cove"]),
        ("IA32_FIXED_CTR4 to 6", 0x30d, 0x30f, &["darkmont"]),
        ("MSR_PERF_METRICS", 0x329, 0x329, &[]),
        ("IA32_PERF_CAPABILITIES", 0x345, 0x345, FROM_CORE2),
        ("IA32_FIXED_CTR_CTRL", 0x38d, 0x38d, FROM_CORE2),
        ("IA32_PERF_GLOBAL_STATUS, _CTRL, _STATUS_RESET", 0x38e, 0x390, FROM_CORE2),
        ("IA32_PERF_GLOBAL_STATUS_SET", 0x391, 0x391, RANGES),
        ("IA32_PERF_GLOBAL_INUSE", 0x392, 0x392, RANGES),
        ("IA32_PEBS_ENABLE", 0x3f1, 0x3f1, COUNTERS),
        ("MSR_PEBS_DATA_CFG", 0x3f2, 0x3f2, &["icelake", "tremont"]),
        ("IA32_A_PMC0 to 3", 0x4c1, 0x4c4, PT),
        ("IA32_RTIT_OUTPUT_BASE, _MASK_PTRS", 0x560, 0x561, PT),
        ("IA32_RTIT_CTL, _STATUS, _CR3_MATCH", 0x570, 0x572, PT),
        ("IA32_RTIT_ADDR0, 1", 0x580, 0x583, RANGES),
        ("IA32_RTIT_ADDR2, 3", 0x584, 0x587, &["sapphire-rapids"]),
        ("IA32_DS_AREA", 0x600, 0x600, DS),
        ("MSR_LASTBRANCH_0 to 15_FROM_IP", 0x680, 0x68f, STACK),
        ("MSR_LASTBRANCH_16 to 31_FROM_IP", 0x690, 0x69f, INFO),
        ("MSR_LASTBRANCH_0 to 15_TO_IP", 0x6c0, 0x6cf, STACK),
        ("MSR_LASTBRANCH_16 to 31_TO_IP", 0x6d0, 0x6df, INFO),
        ("MSR_LBR_INFO_x", 0xdc0, 0xddf, INFO),
        ("MSR_RELOAD_FIXED_CTR0 to 2", 0x1309, 0x130b, &["tremont"]),
        ("MSR_RELOAD_PMC0 to 3", 0x14c1, 0x14c4, &["tremont"]),
        ("MSR_RELOAD_PMC4 to 7", 0x14c5, 0x14c8, &[]),
        ("IA32_PMC_GP0_CTR, CFG_A", 0x1900, 0x1901, &["cougar-cove", "darkmont"]),
        ("IA32_PMC_GP2_CFG_B, CFG_C", 0x190a, 0x190b, &["darkmont"]),
        ("IA32_PMC_GP9_CTR, CFG_A", 0x1924, 0x1925, &["cougar-cove"]),
        ("IA32_PMC_GP10 and on", 0x1928, 0x197f, &[]),
        ("IA32_PMC_FX3_CTR", 0x198c, 0x198c, &["cougar-cove"]),
        ("IA32_PMC_FX6_CTR", 0x1998, 0x1998, &["darkmont"]),
        ("IA32_PMC_FX7 and on", 0x199c, 0x19ff, &[]),
    ];
    for name in EVERY {
        let hardware = hardware(name);
        for (what, first, last, those) in rows {
            for msr in first..=last {
                // An MSR that the model lacks must not be passed to the physical processor either.
                let absent = hardware.msr_handler(msr) == MsrHandler::Absent;
                let reads = if hardware.owns_msr(msr) { hardware.read_msr(msr).is_ok() } else { !absent };
                assert_eq!(reads, those.contains(name), "{name} {what} {msr:#x}");
            }
        }
    }
}

#[test]
fn the_local_apic_has_the_registers_of_the_maker() {
    const BELOW: u32 = 0x5_0014;
    // Profile, offset, the initial value, `true` if writes are handled here.
    let rows = [
        ("skylake", 0x340, 1 << 16, true),
        ("skylake", 0x500, BELOW, false),
        ("skylake", 0x30, BELOW, false),
        ("zen4", 0x340, 1 << 16, true),
        ("zen4", 0x400, 4 << 16, true),
        ("zen4", 0x500, 1 << 16, true),
        ("zen4", 0x30, 0x8005_0014, false),
        ("zen4", 0x320, BELOW, false),
    ];
    for (name, offset, value, own) in rows {
        let mut hardware = hardware(name);
        assert_eq!(hardware.read_local_apic(offset, || BELOW), value, "{name} {offset:#x}");
        assert_eq!(hardware.write_local_apic(offset, 0x4f0), own, "{name} {offset:#x}");
        if own && offset != 0x400 {
            assert_eq!(hardware.read_local_apic(offset, || BELOW), 0x4f0, "{name} {offset:#x}");
            let before = step(0x1000, &[0x90]).before;
            hardware.init(&Init { before, after: None, tsc: 0 }, &mut EmptyMemory);
            assert_eq!(hardware.read_local_apic(offset, || BELOW), value, "{name} {offset:#x}");
        }
    }
}

#[test]
fn what_is_on_is_logged_and_an_interrupt_on_its_way_is_only_stepped() {
    let profile = Profile::by_name("zen4").expect("there is one");
    let northbridge = Box::leak(Box::new(profile.northbridge()));
    let mut hardware = Hardware::new(
        profile,
        IntelSettings::default(),
        AmdSettings { skid: 2, ..AmdSettings::default() },
        northbridge,
    );
    assert!(!hardware.needs_each_instruction());
    hardware.write_apic(0x340, 0x400);
    write(&mut hardware, 0xc001_0201, !0);
    write(&mut hardware, 0xc001_0200, 0x53_00c0);
    assert!(hardware.needs_each_instruction() && hardware.is_on() && hardware.max_unreported() > 32);
    hardware.retire(&step(0x1000, &[0x90]), &mut EmptyMemory);
    assert_eq!(hardware.max_unreported(), 2);
    write(&mut hardware, 0xc001_0200, 0);
    assert!(hardware.needs_each_instruction() && !hardware.is_on());
    assert_eq!(hardware.max_unreported(), 1);
    hardware.retire(&step(0x1000, &[0x90]), &mut EmptyMemory);
    assert_eq!((hardware.take_interrupt(), hardware.take_interrupt()), (Some(Pmi::Nmi), None));
    assert!(!hardware.needs_each_instruction());
}

#[test]
fn the_registers_before_an_instruction_tell_what_it_accesses() {
    let mut hardware = hardware("zen4");
    assert!(!hardware.needs_registers_before());
    write(&mut hardware, 0xc001_1033, 1 << 17 | 1 << 19 | 0x90 << 32 | 9);
    assert!(hardware.needs_registers_before());
    assert_eq!(hardware.max_unreported(), 1);
    let mut cpu = Cpu { gs: Segment { base: 0x7000, ..Segment::default() }, ..Cpu::default() };
    cpu.gpr[3] = 0x234;
    hardware.set_registers_before(&cpu);
    // MOV RAX, GS:[RBX].
    hardware.retire(&step(0x1000, &[0x65, 0x48, 0x8b, 0x03]), &mut EmptyMemory);
    assert_eq!(hardware.read_msr(0xc001_1038), Ok(0x7234));
}

#[test]
fn rdpmc_reads_the_counters_of_either_maker() {
    for (name, counter, index) in [("zen4", 0xc001_0203, 1), ("k8", 0xc001_0007, 3), ("skylake", 0xc2, 1)] {
        let mut hardware = hardware(name);
        write(&mut hardware, counter, 77);
        assert_eq!(hardware.rdpmc(index), Ok(77), "{name}");
        assert_eq!(hardware.rdpmc(6), Err(GeneralProtection), "{name}");
        assert_eq!(hardware.rdpmc(1 << 30 | 3), Err(GeneralProtection), "{name}");
    }
    let mut skylake = hardware("skylake");
    write(&mut skylake, 0x30b, 78);
    for (index, expected) in
        [(1 << 30 | 2, Ok(78)), (1 << 30 | 0x84, Err(GeneralProtection)), (1 << 29, Err(GeneralProtection))]
    {
        assert_eq!(skylake.rdpmc(index), expected, "{index:#x}");
    }
    assert_eq!(hardware("icelake").rdpmc(1 << 30 | 3), Ok(0));
    assert_eq!(hardware("sapphire-rapids").rdpmc(7), Ok(0));
    assert_eq!(hardware("prescott").rdpmc(0), Err(GeneralProtection));
}

#[test]
fn violations_are_told_by_name() {
    let mut hardware = hardware("zen4");
    let none = hardware.all_violations();
    write(&mut hardware, 0xc001_0200, 1 << 63);
    let one = hardware.all_violations();
    write(&mut hardware, 0xc001_0200, 1 << 63);
    let two = hardware.all_violations();
    for (before, now, expected) in [
        (none, none, ""),
        (none, one, " reserved_event_bits=1"),
        (none, two, " reserved_event_bits=2"),
        (one, two, " reserved_event_bits=1"),
    ] {
        assert_eq!(NewViolations { before, now }.to_string(), expected);
    }
    let intel = |edits, first| {
        let now = IntelViolations { live_table_edits: edits, first_live_edit: first, ..Default::default() };
        Violations::Intel(IntelViolations { lbr_undefined: 1, ..now })
    };
    let (before, now) = (intel(0, None), intel(2, Some(0x5008)));
    assert_eq!(NewViolations { before, now }.to_string(), " live_table_edits=2 first_live_edit=0x5008");
}

#[test]
fn what_is_not_modelled_is_named_and_what_is_is_listed() {
    const ON: u64 = 0x43_0000;
    // The profile, an event select, its value, and the event if it is not modelled.
    let rows = [
        ("skylake", 0x186, 0x81d0 | ON, Some(0x81d0)),
        ("skylake", 0x186, 0xc0 | ON, None),
        ("skylake", 0x186, 0x3c | ON, None),
        ("skylake", 0x186, 0x81d0, None),
        ("skylake", 0x186, 0xc0 | ON | 1 << 24, Some(0xc0 | 1 << 24)),
        ("icelake", 0x18d, 0x01a4 | ON, None),
        ("zen4", 0xc001_0200, 0x64 | ON, Some(0x64)),
        ("zen4", 0xc001_0200, 0x76 | ON, None),
    ];
    for (name, msr, value, expected) in rows {
        let mut hardware = hardware(name);
        write(&mut hardware, msr, value);
        assert_eq!(hardware.event_that_is_not_counted(msr), expected, "{name} {value:#x}");
        assert_eq!(hardware.event_that_is_not_counted(0x10), None, "{name}");
        let mut counted = alloc::vec::Vec::new();
        Profile::by_name(name).expect(name).each_event(|event| counted.push(u64::from(event)));
        assert!(counted.contains(&0xc0) && expected.is_none_or(|event| !counted.contains(&event)), "{name}");
    }
}

/// CPUID, MSR_PLATFORM_INFO and the P-states report the frequency of the guest's clock.
#[test]
fn the_clock_is_what_cpuid_and_the_registers_say() {
    let nothing = pugmark_model::CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    for name in Profile::names() {
        let (hardware, hz) = (hardware(name), Profile::by_name(name).expect(name).tsc_hz());
        let leaf = hardware.cpuid(0x15, 0, nothing);
        if leaf.ecx != 0 {
            assert_eq!(u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax), hz, "{name}");
        }
        let base = hardware.cpuid(0x16, 0, nothing).eax;
        assert!(base == 0 || (u64::from(base) * 1_000_000).abs_diff(hz) < 5_000_000, "{name}");
        let zen = name.starts_with("zen") && !matches!(name, "zen5" | "zen6");
        if zen {
            let state = hardware.read_msr(0xc001_0064).unwrap();
            assert_eq!((state & 0xff) * 200 / (state >> 8 & 0x3f) * 1_000_000, hz, "{name}");
        }
    }
}
