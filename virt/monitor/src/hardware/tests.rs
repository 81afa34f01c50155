use alloc::boxed::Box;

use pugmark_model::{Context, ExecMode};

use super::*;
use crate::guest::Segment;

fn hardware(name: &str) -> Hardware {
    let profile = Profile::by_name(name).expect(name);
    let northbridge = Box::leak(Box::new(profile.northbridge()));
    let settings = Settings { pmi_skid: 0, ..Settings::default() };
    Hardware::new(profile, settings, amd::Settings { skid: 0, ..amd::Settings::default() }, northbridge)
}

/// Nothing is memory, and all of it is mapped to itself.
struct Nothing;

impl PhysMemory for Nothing {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn write(&mut self, _: u64, _: &[u8]) -> bool {
        false
    }
}

fn step(ip: u64, bytes: &[u8]) -> Retired<'_> {
    let at = |ip| Context { ip, cr3: 0, cpl: 0, mode: ExecMode::Bits64, iflag: true };
    Retired { before: at(ip), after: at(ip + bytes.len() as u64), bytes, tsc: 0, operand: 0 }
}

fn write(hardware: &mut Hardware, msr: u32, value: u64) {
    assert!(hardware.owns_msr(msr), "{msr:#x}");
    hardware.write_msr(msr, value, &step(0x1000, &[0x0f, 0x30]), &mut Nothing).expect("WRMSR");
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
        assert_eq!(hardware.place(other), Place::Absent, "{name}");
        assert_eq!(hardware.has_sysenter_in_long_mode(), sysenter, "{name}");
    }
}

#[test]
fn the_local_apic_has_the_registers_of_the_maker() {
    const BELOW: u32 = 0x5_0014;
    // Profile, offset, what it reads at first, whether writes stay here.
    let rows = [
        ("skylake", 0x340, 1 << 16, true),
        ("skylake", 0x500, BELOW, false),
        ("skylake", 0x30, BELOW, false),
        ("zen4", 0x340, 1 << 16, true),
        ("zen4", 0x400, 4 << 16, true),
        ("zen4", 0x500, 0, true),
        ("zen4", 0x30, 0x8005_0014, false),
        ("zen4", 0x320, BELOW, false),
    ];
    for (name, offset, value, own) in rows {
        let mut hardware = hardware(name);
        assert_eq!(hardware.read_apic(offset, || BELOW), value, "{name} {offset:#x}");
        assert_eq!(hardware.write_apic(offset, 0x4f0), own, "{name} {offset:#x}");
        if own && offset != 0x400 {
            assert_eq!(hardware.read_apic(offset, || BELOW), 0x4f0, "{name} {offset:#x}");
            hardware.init();
            assert_eq!(hardware.read_apic(offset, || BELOW), value, "{name} {offset:#x}");
        }
    }
}

#[test]
fn what_is_on_is_logged_and_an_interrupt_on_its_way_is_only_stepped() {
    let profile = Profile::by_name("zen4").expect("there is one");
    let northbridge = Box::leak(Box::new(profile.northbridge()));
    let mut hardware = Hardware::new(
        profile,
        Settings::default(),
        amd::Settings { skid: 2, ..amd::Settings::default() },
        northbridge,
    );
    assert!(!hardware.steps());
    hardware.write_apic(0x340, 0x400);
    write(&mut hardware, 0xc001_0201, !0);
    write(&mut hardware, 0xc001_0200, 0x53_00c0);
    assert!(hardware.steps() && hardware.is_on() && !hardware.steps_singly());
    hardware.retire(&step(0x1000, &[0x90]), &mut Nothing);
    assert!(hardware.steps_singly());
    write(&mut hardware, 0xc001_0200, 0);
    assert!(hardware.steps() && !hardware.is_on() && hardware.steps_singly());
    hardware.retire(&step(0x1000, &[0x90]), &mut Nothing);
    assert_eq!((hardware.take_interrupt(), hardware.take_interrupt()), (Some(Pmi::Nmi), None));
    assert!(!hardware.steps());
}

#[test]
fn the_registers_before_an_instruction_tell_what_it_accesses() {
    let mut hardware = hardware("zen4");
    assert!(!hardware.wants_registers_before());
    write(&mut hardware, 0xc001_1033, 1 << 17 | 1 << 19 | 0x90 << 32 | 9);
    assert!(hardware.wants_registers_before() && hardware.steps_singly());
    let mut cpu = Cpu { gs: Segment { base: 0x7000, ..Segment::default() }, ..Cpu::default() };
    cpu.gpr[3] = 0x234;
    hardware.set_registers_before(&cpu);
    // MOV RAX, GS:[RBX].
    hardware.retire(&step(0x1000, &[0x65, 0x48, 0x8b, 0x03]), &mut Nothing);
    assert_eq!(hardware.read_msr(0xc001_1038), Ok(0x7234));
}

#[test]
fn rdpmc_reads_the_counters_of_either_maker() {
    for (name, counter, index) in [("zen4", 0xc001_0203, 1), ("k8", 0xc001_0007, 3), ("skylake", 0xc2, 1)] {
        let mut hardware = hardware(name);
        write(&mut hardware, counter, 77);
        assert_eq!(hardware.rdpmc(index), Ok(77), "{name}");
        assert_eq!(hardware.rdpmc(6), Err(GeneralProtection), "{name}");
        assert_eq!(hardware.rdpmc(1 << 30), Err(GeneralProtection), "{name}");
    }
    assert_eq!(hardware("sapphire-rapids").rdpmc(0), Err(GeneralProtection));
}

#[test]
fn only_violations_are_told() {
    let mut hardware = hardware("zen4");
    assert!(hardware.violations().is_none());
    write(&mut hardware, 0xc001_0200, 1 << 63);
    assert!(hardware.violations().is_some());
}
