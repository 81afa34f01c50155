use super::fake::{self, Cpu, Machine};
use super::*;
use crate::cpuid::CpuIdResult;
use crate::lifecycle::Missing;
use pugmark_decoder_core::ibs::Caps;

#[test]
fn capabilities_are_what_cpuid_says() {
    let read = |cpu| AmdCapabilities::read(Machine::new(cpu).cpuid()).unwrap();
    // (processor, counters, extended, version 2, LBRs, branch sampling)
    let table = [
        (fake::K7, 4, false, false, 0, false),
        (fake::K8, 4, false, false, 0, false),
        (fake::BARCELONA, 4, false, false, 0, false),
        (fake::BULLDOZER, 6, true, false, 0, false),
        (fake::ZEN_3, 6, true, false, 0, true),
        (fake::ZEN_4, 6, true, true, 16, false),
    ];
    for (cpu, counters, extended, v2, lbrs, brs) in table {
        let caps = read(cpu);
        assert_eq!((u32::from(caps.family), u32::from(caps.model)), (cpu.family, cpu.model));
        assert_eq!((caps.counters, caps.extended_counters, caps.perfmon_v2), (counters, extended, v2));
        assert_eq!((caps.lbr_v2, caps.branch_sampling), (lbrs, brs), "{cpu:x?}");
    }
    // The number of counters is a field of four bits, next to that of the LBRs.
    assert_eq!(read(Cpu { perfmon: (1, 0x20c), ..fake::ZEN_4 }).counters, 12);
    assert_eq!(read(Cpu { perfmon: (1, 0x20c), ..fake::ZEN_4 }).lbr_v2, 0);
    assert_eq!(read(Cpu { perfmon: (3, 0x20c), ..fake::ZEN_4 }).lbr_v2, 32);
}

#[test]
fn a_linear_address_has_the_bits_that_cpuid_tells_and_48_where_it_tells_none() {
    // (CPUID.8000_0008H:EAX, bits)
    let table =
        [(0x3030, 48), (0x3934, 57), (0x2024, 32), (0x4034, 64), (0x30, 48), (0x1f30, 48), (0x4130, 48)];
    for (eax, bits) in table {
        let cpuid = |leaf, sub| match leaf {
            0x8000_0008 => CpuIdResult { eax, ebx: 0, ecx: 0, edx: 0 },
            _ => crate::cpuid::CpuIdReader::cpuid2(&Machine::new(fake::ZEN_4).cpuid(), leaf, sub),
        };
        assert_eq!(AmdCapabilities::read(cpuid).unwrap().linear_address_bits, bits, "{eax:#x}");
    }
}

#[test]
fn ibs_is_announced_by_one_leaf_and_described_by_another() {
    let read = |cpu| AmdCapabilities::read(Machine::new(cpu).cpuid()).unwrap().ibs_part();
    assert_eq!(read(fake::K8), None);
    assert_eq!(read(fake::ZEN_2).unwrap().caps, Caps(0x3ff));
    // Early family 10h: the leaf is empty.
    assert_eq!(read(fake::BARCELONA).unwrap().caps, Caps::WITHOUT_LEAF);
    assert_eq!(read(Cpu { features: 0, ..fake::ZEN_2 }), None);
}

#[test]
fn leaves_above_the_highest_are_not_read() {
    let cpuid = |leaf, sub| match leaf {
        0x8000_0000 => CpuIdResult { eax: 0x8000_0001, ebx: 0, ecx: 0, edx: 0 },
        0x8000_0002.. => panic!("leaf {leaf:#x}"),
        _ => crate::cpuid::CpuIdReader::cpuid2(&Machine::new(fake::ZEN_4).cpuid(), leaf, sub),
    };
    let caps = AmdCapabilities::read(cpuid).unwrap();
    assert_eq!(caps.ibs, Some(Caps::WITHOUT_LEAF));
    assert_eq!((caps.counters, caps.perfmon_v2, caps.lbr_v2), (6, false, 0));
}

#[test]
fn hygon_builds_amds_processors_and_intel_does_not() {
    let vendor = |ebx, edx, ecx| {
        move |leaf, sub| match leaf {
            0 => CpuIdResult { eax: 0x10, ebx, ecx, edx },
            _ => crate::cpuid::CpuIdReader::cpuid2(&Machine::new(fake::ZEN_2).cpuid(), leaf, sub),
        }
    };
    assert!(AmdCapabilities::read(vendor(0x6f67_7948, 0x6e65_476e, 0x656e_6975)).is_ok());
    assert_eq!(AmdCapabilities::read(vendor(0x756e_6547, 0x4965_6e69, 0x6c65_746e)), Err(Missing::Amd));
}

#[test]
fn the_xapics_extended_entries_are_at_500h() {
    let mut page = [0u32; 1024];
    page[0x400 / 4] = 0x0004_0007;
    page[0x510 / 4] = 0x1_0000;
    // SAFETY: the page outlives the value, and plain memory can stand in for registers.
    let mut apic =
        unsafe { crate::lapic::XApic::new(core::ptr::NonNull::new(page.as_mut_ptr().cast()).unwrap()) };
    assert_eq!(ExtendedLvt::count(&mut apic), Ok(4));
    assert_eq!(apic.entry(1), Ok(LvtEntry::MASKED));
    // SAFETY: plain memory delivers nothing.
    unsafe { apic.set_entry(3, LvtEntry::NMI) }.unwrap();
    assert_eq!(page[0x530 / 4], 0x400);
}

#[test]
fn the_x2apics_extended_entries_are_msrs() {
    let machine = Machine::new(fake::ZEN_4);
    machine.set(0x840, 0x0004_0007);
    machine.set(0x851, 0x1_0000);
    let mut apic = crate::lapic::X2Apic::new(machine.clone());
    assert_eq!(ExtendedLvt::count(&mut apic), Ok(4));
    assert_eq!(apic.entry(1), Ok(LvtEntry::MASKED));
    // SAFETY: the register represents no hardware.
    unsafe { apic.set_entry(3, LvtEntry::NMI) }.unwrap();
    assert_eq!(machine.writes(), [(0x853, 0x400)]);
}
