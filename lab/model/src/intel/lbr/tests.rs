//! The last branch record stack: the recorded branches, filters, call stacks, freezing.

use std::vec::Vec;

use crate::intel::IntelSettings;
use crate::intel::tests::debug_store::*;
use crate::intel::tests::machine::*;
use crate::{Context, DeliveryKind, ExecMode, Pmi};

const SELECT: u32 = 0x1c8;
const MISPRED: u64 = 1 << 63;

/// A stack's registers: "LBR Stack Size and TOS Pointer Range", and vol. 4.
struct Stack {
    profile: &'static str,
    entries: u32,
    from: u32,
    to: u32,
    tos: u32,
    ler: u32,
}

const STACKS: [Stack; 5] = [
    Stack { profile: "prescott", entries: 16, from: 0x680, to: 0x6c0, tos: 0x1da, ler: 0x1d7 },
    Stack { profile: "core2", entries: 4, from: 0x40, to: 0x60, tos: 0x1c9, ler: 0x1dd },
    Stack { profile: "nehalem", entries: 16, from: 0x680, to: 0x6c0, tos: 0x1c9, ler: 0x1dd },
    Stack { profile: "broadwell", entries: 16, from: 0x680, to: 0x6c0, tos: 0x1c9, ler: 0x1dd },
    Stack { profile: "skylake", entries: 32, from: 0x680, to: 0x6c0, tos: 0x1c9, ler: 0x1dd },
];

#[test]
fn addresses_are_linear_in_one_format_and_offsets_in_the_others() {
    for Stack { profile, from, to, .. } in STACKS {
        let mut m = machine(profile);
        m.at.mode = ExecMode::Bits32;
        (m.at.ip, m.at.cs_base) = (0x10_1000, 0x10_0000);
        m.control(1);
        m.at.ip = 0x10_1000;
        m.go(JMP, 0x10_2000);
        m.deliver(DeliveryKind::Interrupt, 32, Context { ip: 0x5000, cs_base: 0, ..m.at }, None);
        let base = if profile == "core2" { 0x10_0000 } else { 0 };
        let read = |m: &mut Machine, slot| (m.read(from + slot) & !MISPRED, m.read(to + slot));
        assert_eq!(read(&mut m, 1), (base + 0x1000, base + 0x2000), "{profile}");
        assert_eq!(read(&mut m, 2), (base + 0x2000, 0x5000), "{profile}");
    }
}

fn machine(profile: &str) -> Machine {
    Machine::new(profile, IntelSettings { pmi_skid: 0, ..IntelSettings::default() })
}

/// Returns the stack of a Skylake from the latest record on, without empty records: from and to, without MISPRED.
fn stack(m: &mut Machine) -> Vec<(u64, u64)> {
    let tos = m.read(0x1c9) as u32;
    (0..32)
        .map(|back| (tos + 32 - back) % 32)
        .map(|slot| (m.read(0x680 + slot), m.read(0x6c0 + slot)))
        .take_while(|entry| *entry != (0, 0))
        .collect()
}

#[test]
fn the_top_of_the_stack_goes_round_over_all_records() {
    for Stack { profile, entries, from, to, tos, .. } in STACKS {
        let mut m = machine(profile);
        m.control(1);
        assert!(m.processor.needs_each_instruction() && m.processor.records_branches(), "{profile}");
        for n in 1..=entries * 2 + 1 {
            m.go(JMP, 0x1000 + u64::from(n) * 0x10);
            assert_eq!(m.read(tos), u64::from(n % entries), "{profile}");
        }
        for n in 2 + entries..=entries * 2 + 1 {
            let slot = n % entries;
            let expected = (0xff0 + u64::from(n) * 0x10, 0x1000 + u64::from(n) * 0x10);
            assert_eq!((m.read(from + slot), m.read(to + slot)), expected, "{profile} {slot}");
        }
        m.control(0);
        assert!(!m.processor.needs_each_instruction() && !m.processor.records_branches(), "{profile}");
        m.go(JMP, 0x50);
        assert_eq!(m.read(tos), 1, "{profile}");
    }
}

/// Checks "LBR Stack and Intel 64 Processors", the formats 000011B, 000100B and 000101B; "MSR_LBR_INFO_x MSR".
#[test]
fn a_misprediction_is_said_where_the_format_has_it() {
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    for (profile, from, info) in [
        ("prescott", KERNEL, None),
        ("core2", KERNEL, None),
        // Bits 62:48 stay the sign of bit 47.
        ("nehalem", KERNEL, None),
        // Without TSX, its bits are 0.
        ("broadwell", KERNEL & !(3 << 61), None),
        ("skylake", KERNEL, Some(MISPRED | 300)),
    ] {
        let mut m = machine(profile);
        m.tsc = 1000;
        m.control(1);
        m.at.ip = KERNEL;
        m.go(JMP, KERNEL);
        m.tsc = 1300;
        m.go(JMP_RAX, KERNEL + 0x40);
        let stack = STACKS.iter().find(|stack| stack.profile == profile).expect(profile);
        assert_eq!(m.read(stack.from + 2), from, "{profile}, mispredicted");
        let predicted = if matches!(profile, "nehalem" | "broadwell") { from & !MISPRED } else { from };
        assert_eq!(m.read(stack.from + 1), predicted, "{profile}, predicted");
        assert_eq!(m.read(stack.to + 2), KERNEL + 0x40, "{profile}");
        if let Some(info) = info {
            assert_eq!(m.read(0xdc2), info, "{profile}");
            assert_eq!(m.read(0xdc1), 1000, "{profile}");
            m.tsc += 0x1_0000;
            m.go(JMP, KERNEL);
            assert_eq!(m.read(0xdc3), 0xffff, "saturating");
            // An interrupt is not predicted, so it is never mispredicted.
            m.deliver(DeliveryKind::Interrupt, 32, m.kernel(KERNEL), None);
            assert_eq!(m.read(0xdc4), 0);
        }
    }
}

/// Checks "Monitoring Branches, Exceptions, and Interrupts", "Last Exception Records".
#[test]
fn exceptions_keep_the_branch_before_them_and_debug_exceptions_switch_off() {
    for Stack { profile, from, tos, ler, .. } in STACKS {
        let mut m = machine(profile);
        m.control(1);
        m.go(JMP, 0x1000);
        m.deliver(DeliveryKind::Interrupt, 32, m.kernel(0x2000), None);
        assert_eq!((m.read(ler), m.read(ler + 1)), (0x40_0000, 0x1000), "{profile}");
        assert_eq!((m.read(tos), m.read(from + 2) & !MISPRED), (2, 0x1000), "{profile}");
        m.deliver(DeliveryKind::Trap, 1, m.kernel(0x3000), None);
        assert_eq!((m.read(DEBUGCTL), m.read(tos)), (0, 2), "{profile}: it is not recorded");
        assert_eq!((m.read(ler), m.read(ler + 1)), (0x40_0000, 0x1000), "{profile}");
        // INT n with the vector of #DB is treated as any other interrupt.
        m.control(1);
        m.deliver(DeliveryKind::SoftwareInterrupt, 1, m.kernel(0x3000), None);
        assert_eq!((m.read(DEBUGCTL), m.read(tos)), (1, 3), "{profile}");
        assert_eq!((m.read(ler), m.read(ler + 1)), (0x1000, 0x2000), "{profile}");
        for msr in [ler, ler + 1] {
            assert!(m.try_write(msr, 0).is_err(), "{profile}");
        }
    }
}

/// Checks the table "MSR_LBR_SELECT": each bit excludes a kind of branch. On Nehalem, calls and returns are jumps, too.
#[test]
fn filters_leave_out_what_they_name() {
    type Act = (&'static str, fn(&mut Machine));
    let acts: [Act; 9] = [
        ("JCC", |m| m.go(JZ, 0x1000)),
        ("NEAR_REL_CALL", |m| m.go(CALL, 0x1000)),
        ("NEAR_IND_CALL", |m| m.go(CALL_RAX, 0x1000)),
        ("NEAR_RET", |m| m.go(RET, 0x1000)),
        ("NEAR_IND_JMP", |m| m.go(JMP_RAX, 0x1000)),
        ("NEAR_REL_JMP", |m| m.go(JMP, 0x1000)),
        ("FAR_BRANCH", |m| m.far(IRETQ, m.kernel(0x1000))),
        ("FAR_BRANCH", |m| m.deliver(DeliveryKind::Fault, 13, m.kernel(0x1000), None)),
        ("FAR_BRANCH", |m| m.far(SYSCALL, m.kernel(0x1000))),
    ];
    let bits = [
        ("JCC", 2),
        ("NEAR_REL_CALL", 3),
        ("NEAR_IND_CALL", 4),
        ("NEAR_RET", 5),
        ("NEAR_IND_JMP", 6),
        ("NEAR_REL_JMP", 7),
        ("FAR_BRANCH", 8),
    ];
    for profile in ["nehalem", "skylake"] {
        for (name, bit) in bits {
            for (act, run) in acts {
                for cpl in [0, 3] {
                    let mut m = machine(profile);
                    m.write(SELECT, 1 << bit);
                    m.control(1);
                    m.at.cpl = cpl;
                    run(&mut m);
                    let jump_of_nehalem = matches!(
                        (profile, name, act),
                        ("nehalem", "NEAR_IND_JMP", "NEAR_IND_CALL" | "NEAR_RET")
                            | ("nehalem", "NEAR_REL_JMP", "NEAR_REL_CALL")
                    );
                    let left_out = act == name || jump_of_nehalem;
                    assert_eq!(m.read(0x1c9) == 0, left_out, "{profile} {name} {act}");
                }
            }
        }
        // By level: CPL_EQ_0 and CPL_NEQ_0.
        for (select, kernel, user) in [(0, 1, 2), (1, 0, 1), (2, 1, 1), (3, 0, 0)] {
            let mut m = machine(profile);
            m.write(SELECT, select);
            m.control(1);
            m.go(JMP, 0x1000);
            assert_eq!(m.read(0x1c9), kernel, "{profile} {select}");
            m.at.cpl = 3;
            m.go(JMP, 0x1000);
            assert_eq!(m.read(0x1c9), user, "{profile} {select}");
        }
    }
}

const CALL_STACK: u64 = 0x3c4;

/// "Last Branch, Call Stack, Interrupt, and Exception Recording for Processors based on Haswell Microarchitecture".
#[test]
fn in_call_stack_mode_returns_flush_the_call_they_return_from() {
    let mut m = machine("skylake");
    m.write(SELECT, CALL_STACK);
    m.control(1);
    m.go(CALL, 0x1000);
    m.go(JZ, 0x1100);
    m.go(JMP, 0x1200);
    m.go(CALL_RAX, 0x2000);
    assert_eq!(stack(&mut m), [(0x1200, 0x2000), (0x40_0000, 0x1000)]);
    // A call of zero length has no return.
    m.next(CALL_NEXT);
    m.go(CALL, 0x3000);
    m.deliver(DeliveryKind::Interrupt, 32, m.kernel(0x5000), None);
    m.far(IRETQ, m.kernel(0x3000));
    assert_eq!(stack(&mut m), [(0x2005, 0x3000), (0x1200, 0x2000), (0x40_0000, 0x1000)]);
    m.go(RET, 0x200a);
    assert_eq!(stack(&mut m), [(0x1200, 0x2000), (0x40_0000, 0x1000)]);
    m.go(RET, 0x1202);
    m.go(CALL, 0x4000);
    assert_eq!(stack(&mut m), [(0x1202, 0x4000), (0x40_0000, 0x1000)]);
    assert_eq!(m.processor.violations().lbr_undefined, 0);
}

/// Checks that CPL_NEQ_0 excludes levels 1 to 3, for calls and for returns.
#[test]
fn levels_above_0_are_one() {
    for cpl in 0..=3 {
        let mut m = machine("skylake");
        m.write(SELECT, CALL_STACK | 2);
        m.control(1);
        m.go(CALL, 0x1000);
        m.at.cpl = cpl;
        m.go(CALL, 0x2000);
        assert_eq!(stack(&mut m).len(), if cpl == 0 { 2 } else { 1 }, "{cpl}");
        m.go(RET, 0x1005);
        assert_eq!(stack(&mut m), [(0x40_0000, 0x1000)], "{cpl}");
    }
}

/// Checks the combinations that EN_CALLSTACK allows; any other makes the stack undefined.
#[test]
fn call_stack_mode_wants_its_filter() {
    let rows = [
        (CALL_STACK, 0),
        (CALL_STACK | 1, 0),
        (CALL_STACK | 2, 0),
        (CALL_STACK | 3, 1),
        (CALL_STACK | 8, 1),
        (CALL_STACK | 0x10, 1),
        (CALL_STACK | 0x20, 1),
        (CALL_STACK & !4, 1),
        (CALL_STACK & !0x40, 1),
        (CALL_STACK & !0x80, 1),
        (CALL_STACK & !0x100, 1),
        (0x1ff, 0),
    ];
    for (select, undefined) in rows {
        let mut m = machine("skylake");
        m.write(SELECT, select);
        m.control(1);
        m.go(CALL, 0x1000);
        assert_eq!(m.processor.violations().lbr_undefined, undefined, "{select:#x}");
    }
}

/// Checks "Branch Trace Messages": TR and LBR exclude each other in the Core microarchitecture.
#[test]
fn with_tr_the_stack_of_a_core2_is_undefined() {
    for (profile, records, undefined) in
        [("core2", 0, 1), ("nehalem", 1, 0), ("skylake", 1, 0), ("prescott", 1, 0)]
    {
        let mut m = machine(profile);
        let Control { lbr, tr, .. } = control(profile);
        m.control(lbr | tr);
        m.go(JMP, 0x1000);
        let tos = if profile == "prescott" { 0x1da } else { 0x1c9 };
        assert_eq!(m.read(tos), records, "{profile}");
        assert_eq!(m.processor.violations().lbr_undefined, undefined, "{profile}");
    }
}

#[test]
fn registers_take_what_they_can_hold() {
    // Profile, register, value, legal.
    let rows: [(&str, u32, u64, bool); 33] = [
        ("prescott", 0x680, 0, false),
        ("prescott", 0x6c0, 0, false),
        ("prescott", 0x1da, 0, false),
        ("core2", 0x40, 0x1234, true),
        ("core2", 0x60, 0xffff_8000_0000_0000, true),
        ("core2", 0x60, 0x8000_0000_0000, false),
        ("core2", 0x1c9, 3, true),
        ("core2", 0x1c9, 4, false),
        ("nehalem", 0x680, MISPRED | 0x1234, true),
        ("nehalem", 0x680, 0x7fff_8000_0000_0000, true),
        ("nehalem", 0x680, 0xffff_8000_0000_0000, true),
        ("nehalem", 0x680, 0x4000_0000_0000_1234, false),
        ("nehalem", 0x6c0, MISPRED | 0x1234, false),
        ("nehalem", 0x1c8, 0x1ff, true),
        ("nehalem", 0x1c8, 0x200, false),
        ("nehalem", 0x1c9, 15, true),
        ("nehalem", 0x1c9, 16, false),
        ("broadwell", 0x680, MISPRED | 0x1234, true),
        ("broadwell", 0x680, 0x4000_0000_0000_1234, false),
        ("broadwell", 0x1c8, 0x3ff, true),
        ("skylake", 0x680, MISPRED | 0x1234, false),
        ("skylake", 0x69f, 0x1234, true),
        ("skylake", 0xdc0, MISPRED | 0xffff, true),
        ("skylake", 0xdc0, 3 << 61, true),
        ("skylake", 0xdc0, 1 << 60, false),
        ("skylake", 0xdc0, 1 << 16, false),
        ("skylake", 0x1c8, 0x3ff, true),
        ("skylake", 0x1c8, 0x400, false),
        ("skylake", 0x1c9, 31, true),
        ("skylake", 0x1c9, 32, false),
        ("skylake", 0x1dd, 0, false),
        ("skylake", 0x1de, 0, false),
        ("core2", 0x1dd, 0, false),
    ];
    for (profile, msr, value, legal) in rows {
        let mut m = machine(profile);
        assert_eq!(m.try_write(msr, value).is_ok(), legal, "{profile} {msr:x} {value:#x}");
        if legal {
            assert_eq!(m.read(msr), value, "{profile} {msr:x}");
        }
    }
}

/// Checks "Freezing LBR and Performance Counters on PMI": the legacy way, and from version 4 the streamlined way.
#[test]
fn a_pmi_freezes_the_stack() {
    for (profile, value, status) in [("core2", 0x1c0, 0), ("nehalem", 0x1c0, 0), ("skylake", 0x1c1, 1 << 58)]
    {
        let settings = IntelSettings { bts_sets_status: false, pmi_skid: 0, ..IntelSettings::default() };
        let mut m = crate::intel::tests::debug_store::machine(profile, settings, 8, 2);
        m.processor.write_apic(0x340, 0x400);
        m.control(0x1c1 | FREEZE_LBRS);
        m.jumps(1);
        assert_eq!((m.read(DEBUGCTL), m.read(GLOBAL_STATUS)), (0x1c1 | FREEZE_LBRS, 0), "{profile}");
        m.jumps(1);
        assert_eq!((m.read(DEBUGCTL), m.read(GLOBAL_STATUS)), (value | FREEZE_LBRS, status), "{profile}");
        assert_eq!(m.processor.take_interrupt(), Some(Pmi::Nmi));
        let tos = m.read(0x1c9);
        m.jumps(3);
        assert_eq!((m.read(0x1c9), m.index()), (tos, 5), "{profile}: the store goes on");
        if status != 0 {
            m.write(GLOBAL_STATUS_RESET, status);
            m.jumps(1);
            assert_eq!(m.read(0x1c9), tos + 1, "{profile}");
        }
    }
    // Without the bit nothing is frozen.
    let mut m = crate::intel::tests::debug_store::machine("nehalem", IntelSettings::default(), 8, 2);
    m.control(0x1c1);
    m.jumps(4);
    assert_eq!((m.read(DEBUGCTL), m.read(0x1c9)), (0x1c1, 4));
}
