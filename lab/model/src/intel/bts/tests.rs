//! The Branch Trace Store: the stored branches, their location, and the full buffer.

use std::vec;

use crate::intel::tests::debug_store::*;
use crate::intel::tests::machine::*;
use crate::intel::{BranchLevel, IntelSettings, IntelViolations};
use crate::{DeliveryKind, Pmi};

pub(crate) fn strict() -> IntelSettings {
    IntelSettings { pmi_skid: 0, ..IntelSettings::default() }
}

/// Checks "Last Branch From" and "Last Branch To" for each kind of branch: "LBR Stack for Processors Based on Intel
/// NetBurst Microarchitecture".
#[test]
fn a_record_says_where_a_branch_came_from_and_where_it_led() {
    use DeliveryKind::*;
    let mut m = machine("skylake", strict(), 32, 33);
    m.control(ON);
    m.next(NOP);
    m.next(JZ);
    m.go(JZ, 0x40_0040);
    m.go(JMP, 0x40_0082);
    m.go(CALL, 0x40_0187);
    m.go(CALL_NEXT, 0x40_018c);
    m.go(RET, 0x40_0087);
    m.go(JMP_RAX, 0x40_0200);
    m.go(CALL_RAX, 0x40_0300);
    m.far(SYSCALL, m.kernel(0x50_0000));
    m.far(IRETQ, m.user(0x40_0302));
    m.deliver(Interrupt, 32, m.kernel(0x50_1000), None);
    m.far(IRETQ, m.user(0x40_0302));
    m.deliver(Fault, 14, m.kernel(0x50_2000), Some(0x77));
    m.far(IRETQ, m.user(0x40_0302));
    m.deliver(SoftwareInterrupt, 0x80, m.kernel(0x50_3000), None);
    m.far(IRETQ, m.user(0x40_0304));
    // A trap is caused by the previous instruction.
    m.next(NOP);
    m.deliver(Trap, 1, m.kernel(0x50_4000), None);
    m.far(IRETQ, m.user(0x40_0305));
    // If that instruction is a branch, there are two records, both with the branch as source.
    m.go(JMP_RAX, 0x40_0400);
    m.deliver(Trap, 1, m.kernel(0x50_4000), None);
    m.deliver(Nmi, 2, m.kernel(0x50_5000), None);
    let found: vec::Vec<_> = m.stored().iter().map(|record| record.replace('*', "")).collect();
    assert_eq!(
        found,
        [
            "400003 400040",
            "400040 400082",
            "400082 400187",
            "400187 40018c",
            "40018c 400087",
            "400087 400200",
            "400200 400300",
            "400300 500000",
            "500000 400302",
            "400302 501000",
            "501000 400302",
            "400302 502000",
            "502000 400302",
            "400302 503000",
            "503000 400304",
            "400304 504000",
            "504000 400305",
            "400305 400400",
            "400305 504000",
            "504000 505000",
        ]
    );
    assert_eq!(m.processor.violations(), &IntelViolations::default());
}

#[test]
fn a_trap_comes_from_what_retired_last() {
    let mut m = machine("skylake", strict(), 8, 9);
    m.control(ON);
    m.deliver(DeliveryKind::Trap, 1, m.kernel(0x50_0000), None);
    m.write(GLOBAL_STATUS_RESET, 0);
    m.deliver(DeliveryKind::Trap, 1, m.kernel(0x50_1000), None);
    m.deliver(DeliveryKind::SoftwareInterrupt, 0x80, m.kernel(0x50_2000), None);
    m.deliver(DeliveryKind::Trap, 1, m.kernel(0x50_3000), None);
    m.deliver(DeliveryKind::Interrupt, 32, m.kernel(0x50_4000), None);
    let expected = ["3ffffe 500000", "500000 501000", "501000 502000", "501000 503000", "503000 504000"];
    assert_eq!(m.stored(), expected);
}

/// TR and BTS.
pub(crate) const ON: u64 = 0xc0;

/// Checks the table "CPL-Qualified Branch Trace Store Encodings". BTINT does not change what is stored.
#[test]
fn flags_say_what_is_stored() {
    // TR, BTS, BTS_OFF_OS, BTS_OFF_USR; `true` if branches at CPL > 0 are stored, and if those at CPL = 0 are.
    let rows: [([bool; 4], bool, bool); 16] = {
        let (n, y) = (false, true);
        [
            ([n, n, n, n], n, n),
            ([n, n, n, y], n, n),
            ([n, n, y, n], n, n),
            ([n, n, y, y], n, n),
            ([n, y, n, n], n, n),
            ([n, y, n, y], n, n),
            ([n, y, y, n], n, n),
            ([n, y, y, y], n, n),
            ([y, n, n, n], n, n),
            ([y, n, n, y], n, n),
            ([y, n, y, n], n, n),
            ([y, n, y, y], n, n),
            ([y, y, n, n], y, y),
            ([y, y, y, n], y, n),
            ([y, y, n, y], n, y),
            ([y, y, y, y], n, n),
        ]
    };
    for profile in PROFILES {
        let Control { tr, bts, btint, off_os, off_usr, .. } = control(profile);
        for (set, user, kernel) in rows {
            for with_btint in [0, btint] {
                let bits = [tr, bts, off_os, off_usr];
                let value: u64 = bits.iter().zip(set).map(|(bit, set)| if set { *bit } else { 0 }).sum();
                let mut m = machine(profile, strict(), 32, 33);
                m.control(value | with_btint);
                let messages = (m.processor.needs_each_instruction(), m.processor.records_branches());
                assert_eq!(messages, (set[0], set[0]), "{profile} {value:#x}");
                m.go(JMP_RAX, 0x1000);
                m.at = m.user(0x2000);
                m.go(JMP_RAX, 0x3000);
                let [in_kernel, in_user] = ["400000 1000", "2000 3000"];
                let expected: vec::Vec<_> = [(kernel, in_kernel), (user, in_user)]
                    .iter()
                    .filter(|(is, _)| *is)
                    .map(|(_, r)| *r)
                    .collect();
                assert_eq!(m.stored(), expected, "{profile} {value:#x}");
            }
        }
    }
}

#[test]
fn a_branch_between_levels_has_the_one_that_is_set() {
    for (branch_level, off, expected) in [
        (BranchLevel::To, 0x200, &["50 40"][..]),
        (BranchLevel::To, 0x400, &["40 50"]),
        (BranchLevel::From, 0x200, &["40 50"]),
        (BranchLevel::From, 0x400, &["50 40"]),
    ] {
        let mut m = machine("core2", IntelSettings { branch_level, ..strict() }, 8, 9);
        m.control(ON | off);
        m.at = m.user(0x40);
        m.far(SYSCALL, m.kernel(0x50));
        m.far(IRETQ, m.user(0x40));
        assert_eq!(m.stored(), expected, "{branch_level:?} {off:#x}");
    }
}

/// Checks "Branch predicted": bit 4, which processors of the Core microarchitecture lack.
#[test]
fn records_say_whether_the_branch_was_predicted() {
    for (profile, mark) in [("prescott", "*"), ("nehalem", "*"), ("skylake", "*"), ("core2", "")] {
        let mut m = machine(profile, strict(), 8, 9);
        let Control { tr, bts, .. } = control(profile);
        m.control(tr | bts);
        for (bytes, to) in [(JMP_RAX, 0x40), (JMP_RAX, 0x40), (JMP_RAX, 0x40), (JMP, 0x82)] {
            m.at.ip = 0x40;
            m.go(bytes, to);
        }
        let with = |text: &str| std::format!("{text}{mark}");
        assert_eq!(m.stored(), ["40 40".into(), with("40 40"), with("40 40"), with("40 82")], "{profile}");
    }
}

/// Checks "Setting Up the BTS Buffer": with BTINT clear the buffer is circular.
#[test]
fn a_circular_buffer_begins_anew_at_its_end() {
    // The absolute maximum is one record above the last one, or one byte more, as in the manual.
    for more in [0, 1, 23] {
        let mut m = machine("nehalem", strict(), 3, 0);
        m.set_area(&[BUFFER, BUFFER, BUFFER + 3 * 24 + more, BUFFER + 5 * 24]);
        m.control(ON);
        for (branches, index) in [(1, 1), (1, 2), (1, 0), (1, 1), (5, 0)] {
            for _ in 0..branches {
                m.go(JMP_RAX, m.at.ip + 0x10);
            }
            assert_eq!(m.index(), index, "{more}");
        }
        assert_eq!(m.records(3), ["400060 400070", "400070 400080", "400080 400090"]);
        assert_eq!(m.processor.take_interrupt(), None);
        assert_eq!(m.processor.violations(), &IntelViolations::default());
    }
}

/// Checks "Setting Up the BTS Buffer", the note: clearing BTINT is not enough to prevent an interrupt.
#[test]
fn a_threshold_within_a_circular_buffer_interrupts_too() {
    let mut m = machine("skylake", strict(), 4, 2);
    m.processor.write_apic(0x340, 0xf0);
    m.control(ON);
    m.jumps(2);
    assert_eq!(m.processor.take_interrupt(), Some(Pmi::Fixed(0xf0)));
    assert_eq!(m.processor.violations().circular_interrupts, 1);
}

/// Checks "BTS interrupt threshold", and IA32_PERF_GLOBAL_STATUS.OvfDSBuffer.
#[test]
fn reaching_the_threshold_raises_one_pmi() {
    for (profile, sets) in [("core2", true), ("nehalem", true), ("skylake", true), ("skylake", false)] {
        let mut m = machine(profile, IntelSettings { bts_sets_status: sets, ..strict() }, 8, 4);
        m.processor.write_apic(0x340, 0x400);
        m.control(ON | 0x100);
        m.jumps(3);
        assert_eq!((m.processor.take_interrupt(), m.read(GLOBAL_STATUS)), (None, 0), "{profile}");
        m.jumps(1);
        let status = if sets { OVF_DS_BUFFER } else { 0 };
        assert_eq!(
            (m.processor.take_interrupt(), m.read(GLOBAL_STATUS)),
            (Some(Pmi::Nmi), status),
            "{profile}"
        );
        assert_ne!(m.processor.read_apic(0x340) & 1 << 16, 0, "the entry is masked");
        m.write(GLOBAL_STATUS_RESET, OVF_DS_BUFFER);
        assert_eq!(m.read(GLOBAL_STATUS), 0, "{profile}");
        // Above the threshold there is no further PMI.
        m.processor.write_apic(0x340, 0x400);
        m.jumps(2);
        assert_eq!((m.processor.take_interrupt(), m.index()), (None, 6), "{profile}");
        // The handler removes the records and resets the index.
        m.control(0);
        m.set_word(AREA + 8, BUFFER);
        m.control(ON | 0x100);
        m.jumps(4);
        assert_eq!(m.processor.take_interrupt(), Some(Pmi::Nmi), "{profile}");
        assert_eq!(m.processor.violations(), &IntelViolations::default(), "{profile}");
    }
}

#[test]
fn records_go_on_while_the_pmi_is_on_its_way() {
    let mut m = machine("skylake", IntelSettings { pmi_skid: 3, ..IntelSettings::default() }, 8, 2);
    m.processor.write_apic(0x340, 0x400);
    m.control(ON | 0x100);
    m.jumps(2);
    let mut more = 0;
    while m.processor.take_interrupt().is_none() {
        m.jumps(1);
        more += 1;
    }
    assert_eq!((more, m.index()), (3, 5));
}

/// Checks "Writing the DS Interrupt Service Routine": the processor does not disable the store when the buffer is full.
#[test]
fn a_full_buffer_loses_what_comes_and_goes_on_when_there_is_room() {
    let mut m = machine("nehalem", strict(), 3, 2);
    m.control(ON | 0x100);
    m.jumps(5);
    assert_eq!((m.index(), m.processor.violations().branch_records_dropped), (3, 2));
    assert_eq!(m.read(DEBUGCTL), ON | 0x100);
    m.set_word(AREA + 8, BUFFER);
    m.jumps(1);
    assert_eq!((m.index(), m.processor.violations().branch_records_dropped), (1, 2));
}

/// Checks "Setting Up the BTS Buffer", the note: a buffer that is smaller than one record is undefined.
#[test]
fn nothing_is_stored_outside_the_buffer() {
    for fields in [
        [BUFFER, BUFFER, BUFFER + 23, BUFFER + 0x1000],
        [BUFFER, BUFFER, 0, 0],
        [BUFFER, BUFFER - 24, BUFFER + 0x100, BUFFER + 0x1000],
        [u64::MAX - 8, u64::MAX - 8, u64::MAX, 0],
    ] {
        let mut m = machine("skylake", strict(), 4, 5);
        m.set_area(&fields);
        let before = m.ram.clone();
        m.control(ON);
        m.jumps(2);
        assert_eq!(m.ram, before, "{fields:x?}");
        assert_eq!(m.processor.violations().ds_misconfigured, 2, "{fields:x?}");
    }
    let mut m = machine("skylake", strict(), 4, 5);
    m.set_area(&[BUFFER, BUFFER + 0x200, BUFFER + 0x100, BUFFER + 0x1000]);
    let before = m.ram.clone();
    m.control(ON);
    m.jumps(1);
    assert_eq!((m.ram == before, m.processor.violations().branch_records_dropped), (true, 1));
}

/// Checks "BTS and DS Save Area": recording ends with INIT and when a machine check is generated.
#[test]
fn init_and_machine_checks_end_recording() {
    for profile in PROFILES {
        let Control { tr, bts, btint, off_os, .. } = control(profile);
        let mut m = machine(profile, strict(), 8, 9);
        m.control(tr | bts | btint | off_os);
        m.deliver(DeliveryKind::Fault, 18, m.kernel(0x50_0000), None);
        assert_eq!(
            (m.read(DEBUGCTL), m.index(), m.processor.needs_each_instruction()),
            (off_os, 0, false),
            "{profile}"
        );
        m.control(tr | bts | btint);
        m.init(None);
        assert_eq!(m.read(DEBUGCTL), 0, "{profile}");
        // An interrupt with the same vector does not end it.
        m.control(tr | bts);
        m.deliver(DeliveryKind::SoftwareInterrupt, 18, m.kernel(0x50_0000), None);
        assert_eq!(m.index(), 1, "{profile}");
    }
}
