//! The general-purpose counters.

use crate::intel::IntelSettings;
use crate::intel::tests::debug_store::*;
use crate::intel::tests::machine::*;
use crate::{DeliveryKind, Pmi};

const PMC0: u32 = 0xc1;
const SELECT0: u32 = 0x186;
const A_PMC0: u32 = 0x4c1;
const GLOBAL_CTRL: u32 = 0x38f;
const USR: u64 = 1 << 16;
const OS: u64 = 1 << 17;
const INT: u64 = 1 << 20;
const EN: u64 = 1 << 22;

fn machine(profile: &str) -> Machine {
    Machine::new(profile, IntelSettings { pmi_skid: 0, ..IntelSettings::default() })
}

/// Executes an instruction, conditional branches not taken and taken, a call, a return, a jump, a system call.
fn workload(m: &mut Machine) {
    m.at.ip = 0x1000;
    m.next(NOP);
    m.next(JZ);
    m.go(JZ, 0x2000);
    m.go(CALL, 0x3000);
    m.go(RET, 0x2005);
    m.go(JMP, 0x4000);
    m.far(SYSCALL, m.kernel(0x5000));
}

/// Checks "Pre-defined Architectural Performance Events", and each microarchitecture's own events.
#[test]
fn events_count_what_they_name() {
    // Profile, event and unit mask, number of counted instructions of the workload.
    let rows: [(&str, u64, u64); 20] = [
        ("core2", 0x00c0, 7),
        ("core2", 0x00c4, 6),
        // Mispredicted: the conditional branch that is taken for the first time, the return, the system call.
        ("core2", 0x00c5, 3),
        ("core2", 0x01c4, 0),
        ("core2", 0x003c, 0),
        ("nehalem", 0x00c0, 7),
        ("nehalem", 0x00c4, 6),
        ("nehalem", 0x01c4, 2),
        ("nehalem", 0x02c4, 1),
        ("skylake", 0x00c0, 7),
        ("skylake", 0x01c0, 7),
        ("skylake", 0x00c4, 6),
        ("skylake", 0x01c4, 2),
        ("skylake", 0x02c4, 1),
        ("skylake", 0x04c4, 6),
        ("skylake", 0x08c4, 1),
        ("skylake", 0x20c4, 4),
        ("skylake", 0x40c4, 1),
        ("skylake", 0x00c5, 3),
        ("skylake", 0x10c4, 0),
    ];
    for (profile, event, count) in rows {
        let mut m = machine(profile);
        m.write(SELECT0 + 1, event | OS | USR | EN);
        assert_eq!(m.processor.needs_each_instruction(), count != 0, "{profile} {event:#x}");
        workload(&mut m);
        assert_eq!(m.read(PMC0 + 1), count, "{profile} {event:#x}");
        assert_eq!(m.read(PMC0), 0, "{profile} {event:#x}");
    }
}

/// "Architectural Performance Monitoring": instructions at retirement. INT n is an instruction, an interrupt is not.
#[test]
fn software_interrupts_are_instructions_and_far_branches() {
    for (event, count) in [(0x01c0, 1), (0x04c4, 1), (0x40c4, 1), (0x20c4, 0), (0x02c4, 0), (0x00c5, 0)] {
        let mut m = machine("skylake");
        m.write(SELECT0 + 1, event | OS | USR | EN);
        for kind in [
            DeliveryKind::Interrupt,
            DeliveryKind::Nmi,
            DeliveryKind::Fault,
            DeliveryKind::Trap,
            DeliveryKind::SoftwareInterrupt,
        ] {
            m.deliver(kind, 0x20, m.kernel(0x2000), None);
        }
        assert_eq!(m.read(PMC0 + 1), count, "{event:#x}");
        // INT n counts at the privilege level at which it is executed.
        m.at = m.user(0x3000);
        m.write(SELECT0 + 1, event | OS | EN);
        m.deliver(DeliveryKind::SoftwareInterrupt, 0x80, m.kernel(0x2000), None);
        assert_eq!(m.read(PMC0 + 1), count, "{event:#x}");
    }
}

#[test]
fn a_counter_counts_where_it_is_enabled() {
    // IA32_PERFEVTSEL0, IA32_PERF_GLOBAL_CTRL; the count in the kernel, the count in user code.
    let rows = [
        (0xc0 | OS | USR | EN, 0xf, 1, 1),
        (0xc0 | OS | EN, 0xf, 1, 0),
        (0xc0 | USR | EN, 0xf, 0, 1),
        (0xc0 | EN, 0xf, 0, 0),
        (0xc0 | OS | USR, 0xf, 0, 0),
        (0xc0 | OS | USR | EN, 0xe, 0, 0),
        (0xc0 | OS | USR | EN, 1, 1, 1),
        // Edge detect, INV and CMASK count cycles.
        (0xc0 | OS | USR | EN | 1 << 18, 0xf, 0, 0),
        (0xc0 | OS | USR | EN | 1 << 23, 0xf, 0, 0),
        (0xc0 | OS | USR | EN | 1 << 24, 0xf, 0, 0),
    ];
    for (select, ctrl, kernel, user) in rows {
        let mut m = machine("skylake");
        m.write(GLOBAL_CTRL, ctrl);
        m.write(SELECT0, select);
        m.next(NOP);
        assert_eq!(m.read(PMC0), kernel, "{select:#x} {ctrl:#x}");
        m.at.cpl = 3;
        m.next(NOP);
        assert_eq!(m.read(PMC0), kernel + user, "{select:#x} {ctrl:#x}");
    }
}

/// Checks "Full-Width Writes to Performance Counter Registers"; the width is CPUID.0AH:EAX[23:16].
#[test]
fn writes_extend_the_sign_of_32_bits() {
    let rows: [(&str, u32, u64, Option<u64>); 9] = [
        ("core2", PMC0, 0x1234_5678, Some(0x1234_5678)),
        ("core2", PMC0, 0xffff_fff0, Some(0xff_ffff_fff0)),
        ("nehalem", PMC0, 0xffff_fff0, Some(0xffff_ffff_fff0)),
        ("nehalem", PMC0, 0x55_0000_0001, Some(1)),
        ("skylake", PMC0, 0x8000_0000, Some(0xffff_8000_0000)),
        ("skylake", A_PMC0, 0x8000_0000, Some(0x8000_0000)),
        ("skylake", A_PMC0, 0xffff_ffff_fff0, Some(0xffff_ffff_fff0)),
        ("skylake", A_PMC0, 1 << 48, None),
        ("skylake", A_PMC0 + 3, 7, Some(7)),
    ];
    for (profile, msr, value, expected) in rows {
        let mut m = machine(profile);
        assert_eq!(m.try_write(msr, value).ok(), expected.map(|_| ()), "{profile} {msr:x} {value:#x}");
        if let Some(expected) = expected {
            let alias = if msr >= A_PMC0 { msr - A_PMC0 + PMC0 } else { msr };
            assert_eq!((m.read(msr), m.read(alias)), (expected, expected), "{profile} {msr:x} {value:#x}");
        }
    }
}

#[test]
fn control_registers_refuse_what_is_reserved() {
    let rows: [(&str, u32, u64, bool); 14] = [
        ("core2", SELECT0, 0xffdf_ffff, true),
        ("core2", SELECT0, 1 << 21, false),
        ("nehalem", SELECT0, 0xffff_ffff, true),
        ("nehalem", SELECT0, 1 << 32, false),
        ("skylake", SELECT0 + 3, 0xffff_ffff, true),
        ("skylake", SELECT0, 1 << 63, false),
        ("core2", GLOBAL_CTRL, 0b11, true),
        ("core2", GLOBAL_CTRL, 0b100, false),
        ("skylake", GLOBAL_CTRL, 0xf, true),
        ("skylake", GLOBAL_CTRL, 0x10, false),
        ("icelake", GLOBAL_CTRL, 1 << 36, false),
        ("skylake", GLOBAL_STATUS_RESET, 0xf | 1 << 62, true),
        ("skylake", GLOBAL_STATUS_RESET, 0x10, false),
        ("nehalem", GLOBAL_STATUS_RESET, 1 << 55, false),
    ];
    for (profile, msr, value, legal) in rows {
        let mut m = machine(profile);
        assert_eq!(m.try_write(msr, value).is_ok(), legal, "{profile} {msr:x} {value:#x}");
    }
}

#[test]
fn an_overflow_shows_and_raises_a_pmi_where_it_is_asked_to() {
    for profile in ["core2", "nehalem", "skylake"] {
        for int in [0, INT] {
            let mut m = machine(profile);
            m.processor.write_apic(0x340, 0x400);
            m.write(PMC0 + 1, 0xffff_fffe);
            m.write(SELECT0 + 1, 0xc0 | OS | EN | int);
            m.next(NOP);
            assert_eq!(m.read(GLOBAL_STATUS), 0, "{profile}");
            m.next(NOP);
            assert_eq!((m.read(GLOBAL_STATUS), m.read(PMC0 + 1)), (0b10, 0), "{profile}");
            let pmi = (int != 0).then_some(Pmi::Nmi);
            assert_eq!(m.processor.take_interrupt(), pmi, "{profile}");
            m.write(GLOBAL_STATUS_RESET, 0b10);
            assert_eq!(m.read(GLOBAL_STATUS), 0, "{profile}");
        }
    }
}

/// Checks the table "Legacy and Streamlined Operation with Freeze_Perfmon_On_PMI = 1, Counter Overflowed".
#[test]
fn a_pmi_freezes_the_counters() {
    for (profile, ctrl, status) in [("core2", 0, 1), ("nehalem", 0, 1), ("skylake", 0xf, 1 | 1 << 59)] {
        let mut m = machine(profile);
        m.control(FREEZE_PERFMON);
        m.write(PMC0, 0xffff_ffff);
        m.write(SELECT0, 0xc0 | OS | EN | INT);
        m.next(NOP);
        assert_eq!((m.read(GLOBAL_CTRL), m.read(GLOBAL_STATUS)), (ctrl, status), "{profile}");
        assert!(!m.processor.needs_each_instruction(), "{profile}");
        m.next(NOP);
        assert_eq!(m.read(PMC0), 0, "{profile}");
        m.write(GLOBAL_STATUS_RESET, status);
        if ctrl == 0 {
            m.write(GLOBAL_CTRL, 1);
        }
        m.next(NOP);
        assert_ne!(m.read(PMC0), 0, "{profile}");
    }
}

/// Checks "ToPA PMI": the freeze bits apply to it as to other PMIs.
#[test]
fn a_topa_pmi_freezes_too() {
    let mut m = machine("skylake");
    for (index, entry) in [0x1_0000 | 4, 0x1_2000, 0x1000 | 1].iter().enumerate() {
        m.set_word(0x1000 + index as u64 * 8, *entry);
    }
    m.write(BASE, 0x1000);
    m.write(MASK_PTRS, 0);
    m.write(DEBUGCTL, FREEZE_LBRS | FREEZE_PERFMON);
    m.start(ALL | TOPA);
    for n in 0..4000 {
        m.go(JMP_RAX, 0x40_0000 + n % 2 * 0x10);
    }
    assert_eq!(m.read(GLOBAL_STATUS), 1 << 55 | 1 << 58 | 1 << 59);
}
