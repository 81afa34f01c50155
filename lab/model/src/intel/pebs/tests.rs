//! PEBS: the conditions and the content of a record, and the full buffer.

use std::vec::Vec;

use pugmark_decoder_core::pebs::{Format, PebsRecord};

use crate::intel::tests::debug_store::*;
use crate::intel::tests::machine::*;
use crate::intel::{IntelSettings, IntelViolations, Registers};
use crate::{DeliveryKind, GeneralProtection, PageFault, Pmi};

const PEBS_ENABLE: u32 = 0x3f1;
const PMC0: u32 = 0xc1;
const SELECT0: u32 = 0x186;
const GLOBAL_CTRL: u32 = 0x38f;
/// INST_RETIRED.ANY_P in its precise form, in the kernel, enabled.
const INSTRUCTIONS: u64 = 0xc0 | 1 << 17 | 1 << 22;
/// BR_INST_RETIRED.ALL_BRANCHES of Broadwell and Skylake.
const BRANCHES: u64 = 0x04c4 | 1 << 17 | 1 << 22;

/// Returns a machine whose sample buffer has `bytes` bytes and a threshold after `threshold` bytes.
fn machine(profile: &str, bytes: u64, threshold: u64) -> Machine {
    let mut m = Machine::new(profile, IntelSettings { pmi_skid: 0, ..IntelSettings::default() });
    m.processor.write_apic(0x340, 0x400);
    m.write(DS_AREA, AREA);
    for (index, value) in [SAMPLES, SAMPLES, SAMPLES + bytes, SAMPLES + threshold].iter().enumerate() {
        m.set_word(AREA + 0x20 + index as u64 * 8, *value);
    }
    m
}

/// Makes counter 0 sample one in `period` events of `select`.
fn sample(m: &mut Machine, select: u64, period: u64) {
    let reset = 0_u64.wrapping_sub(period);
    m.set_word(AREA + 0x40, reset);
    m.write(PMC0, reset & 0xffff_ffff);
    m.write(PEBS_ENABLE, 1);
    m.write(SELECT0, select);
}

fn record(m: &Machine, format: Format, at: u64) -> PebsRecord<'_> {
    let at = (SAMPLES + at) as usize;
    PebsRecord::parse(format, &m.ram[at..]).expect("a record").0
}

/// Checks "PEBS Record Format" of each microarchitecture.
#[test]
fn a_record_has_the_fields_of_its_format() {
    let registers = Registers {
        rflags: 0x246,
        rax: 1,
        rsp: 2,
        r8_r15: [3, 4, 5, 6, 7, 8, 9, 10],
        ..Registers::default()
    };
    for (profile, format, select, size) in [
        ("core2", Format::Registers, INSTRUCTIONS, 144),
        ("nehalem", Format::Latency, INSTRUCTIONS, 176),
        ("broadwell", Format::Transaction, BRANCHES, 192),
        ("skylake", Format::Time, BRANCHES, 200),
    ] {
        let mut m = machine(profile, 0x1000, 0x1000);
        sample(&mut m, select, 1);
        m.at.ip = 0x1000;
        m.go(JMP, 0x2000);
        assert_eq!(m.read(GLOBAL_STATUS), 1, "{profile}: it has overflowed, which arms");
        assert!(m.processor.wants_registers(), "{profile}");
        m.processor.set_registers(registers, &[0; 256]);
        m.tsc = 77;
        m.go(JMP, 0x3000);
        assert_eq!(m.sample_index(), size, "{profile}");
        assert!(!m.processor.wants_registers(), "{profile}");
        let found = record(&m, format, 0);
        // The state after the instruction.
        assert_eq!(found.registers, Some(Registers { rip: 0x3000, ..registers }), "{profile}");
        let newer = format == Format::Time;
        let precise = newer || format == Format::Transaction;
        assert_eq!(found.eventing_ip, precise.then_some(0x2000), "{profile}");
        assert_eq!(found.tsc, newer.then_some(77), "{profile}");
        assert_eq!(found.applicable_counters, newer.then_some(1), "{profile}");
        let status = matches!(format, Format::Latency | Format::Transaction).then_some(1);
        assert_eq!(found.global_status, status, "{profile}: before the record");
        assert_eq!(m.read(GLOBAL_STATUS), 0, "{profile}: the record clears the overflow");
        assert_eq!(m.processor.violations(), &IntelViolations::default(), "{profile}");
    }
}

/// Checks that the registers after the sampled instruction are known, because it is the first of its run.
#[test]
fn what_executes_in_one_go_ends_before_what_is_sampled() {
    let mut m = machine("skylake", 0x1000, 0x1000);
    assert_eq!(m.processor.max_unreported(), u32::MAX);
    sample(&mut m, BRANCHES, 3);
    m.at.ip = 0x1000;
    for left in [3, 2, 1] {
        assert!(!m.processor.wants_registers());
        assert_eq!(m.processor.max_unreported(), left);
        m.go(JMP, 0x2000);
    }
    assert!(m.processor.wants_registers());
    assert_eq!(m.processor.max_unreported(), 1);
    m.go(JMP, 0x3000);
    assert_ne!(m.sample_index(), 0);
}

#[test]
fn a_software_interrupt_is_sampled_as_an_instruction() {
    let mut m = machine("skylake", 0x1000, 0x1000);
    sample(&mut m, BRANCHES, 1);
    m.at.ip = 0x1000;
    m.go(JMP, 0x2000);
    m.processor.set_registers(Registers::default(), &[0; 256]);
    m.deliver(DeliveryKind::SoftwareInterrupt, 0x80, m.kernel(0x5000), None);
    let found = record(&m, Format::Time, 0);
    assert_eq!((found.eventing_ip, found.next_ip()), (Some(0x2000), Some(0x5000)));
}

/// Checks "Adaptive PEBS": MSR_PEBS_DATA_CFG selects the groups of records, for counters with Adaptive_Record.
#[test]
fn an_adaptive_record_has_the_groups_that_are_asked_for() {
    const DATA_CFG: u32 = 0x3f2;
    const ADAPTIVE: u64 = 1 << 34;
    let registers = Registers { rax: 7, r8_r15: [8; 8], ..Registers::default() };
    // MSR_PEBS_DATA_CFG, Adaptive_Record; then memory, registers, XMM, number of branches, bytes of the record.
    for (cfg, adaptive, memory, gprs, xmm, branches, size) in [
        (0, ADAPTIVE, false, false, false, 0, 32),
        (0b0001, ADAPTIVE, true, false, false, 0, 64),
        (0b0010, ADAPTIVE, false, true, false, 0, 176),
        (0b0100, ADAPTIVE, false, false, true, 0, 288),
        (0b1000, ADAPTIVE, false, false, false, 1, 56),
        (1 << 24 | 0b1000, ADAPTIVE, false, false, false, 2, 80),
        (31 << 24 | 0b1111, ADAPTIVE, true, true, true, 32, 464 + 32 * 24),
        (0xff << 24 | 0b1000, ADAPTIVE, false, false, false, 32, 800),
        (31 << 24 | 0b1111, 0, false, false, false, 0, 32),
    ] {
        let mut m = machine("icelake", 0x1000, 0x1000);
        m.write(DATA_CFG, cfg);
        assert_eq!(m.read(DATA_CFG), cfg);
        m.control(1);
        sample(&mut m, INSTRUCTIONS | adaptive, 1);
        m.at.ip = 0x1000;
        m.go(JMP, 0x2000);
        m.processor.set_registers(registers, &[0x55; 256]);
        m.tsc = 77;
        m.go(JMP, 0x3000);
        assert_eq!(m.sample_index(), size, "{cfg:#x}");
        let found = record(&m, Format::Adaptive, 0);
        assert_eq!(
            (found.eventing_ip, found.applicable_counters, found.tsc),
            (Some(0x2000), Some(1), Some(77)),
            "{cfg:#x}"
        );
        assert_eq!((found.memory.is_some(), found.tx_abort.is_some()), (memory, memory), "{cfg:#x}");
        assert_eq!(found.registers, gprs.then_some(Registers { rip: 0x3000, ..registers }), "{cfg:#x}");
        assert_eq!(found.xmm, xmm.then_some(&[0x55; 256]), "{cfg:#x}");
        let stack: Vec<_> = found.branches.into_iter().flat_map(|branches| branches.iter()).collect();
        assert_eq!(stack.len(), branches, "{cfg:#x}");
        // The latest branch, which is the instruction itself, comes first.
        let ends: Vec<_> = stack.iter().map(|branch| (branch.from, branch.to)).collect();
        let expected: &[_] = &[(0x2000, 0x3000), (0x1000, 0x2000), (0, 0)];
        assert!(ends.iter().zip(expected).all(|(found, expected)| found == expected), "{ends:x?}");
    }
}

#[test]
fn the_groups_register_has_reserved_bits() {
    let legal = 0xff00_000f_u64;
    for bit in 0..64 {
        let mut m = machine("icelake", 0x1000, 0x1000);
        assert_eq!(m.try_write(0x3f2, 1 << bit).is_ok(), legal >> bit & 1 != 0, "{bit}");
        // Adaptive_Record is the only writable bit of bits 63:32; AnyThread (bit 21) is deprecated.
        let select = bit < 32 && bit != 21 || bit == 34;
        assert_eq!(m.try_write(SELECT0, 1 << bit).is_ok(), select, "{bit}");
    }
    let mut m = machine("skylake", 0x1000, 0x1000);
    assert_eq!(m.try_write(SELECT0, 1 << 34), Err(GeneralProtection));
}

/// Checks "PEBS CounterX Reset".
#[test]
fn a_record_resets_the_counter_and_the_next_one_follows() {
    let mut m = machine("nehalem", 0x1000, 0x1000);
    sample(&mut m, INSTRUCTIONS, 3);
    m.at.ip = 0x1000;
    for n in 1..=12 {
        m.next(NOP);
        // Three events until overflow, and one that is recorded.
        assert_eq!(m.sample_index(), n / 4 * 176, "{n}");
    }
    let ips = [0, 176, 352].map(|at| record(&m, Format::Latency, at).next_ip());
    assert_eq!(ips, [Some(0x1004), Some(0x1008), Some(0x100c)]);
    assert_eq!(m.read(PMC0), 0xffff_ffff_fffd);
}

/// Checks "Extended PEBS": fixed-function counters sample, too. Their reset values follow those of eight
/// general-purpose counters, and each record is for the counters that have overflowed.
#[test]
fn fixed_function_counters_sample_where_pebs_is_extended() {
    for profile in ["icelake", "tremont"] {
        let mut m = machine(profile, 0x1000, 0x1000);
        let below = |period: u64| (1 << 48) - period;
        // Reset values that no counter may take.
        (0..32).for_each(|n| m.set_word(AREA + 0x40 + 8 * n, below(500 + n)));
        m.set_word(AREA + 0x40 + 8 * 8, below(4));
        m.set_word(AREA + 0x40 + 8 * 10, below(30));
        m.write(0x309, below(2));
        m.write(0x30b, below(45));
        m.write(PEBS_ENABLE, 0b101 << 32);
        m.write(GLOBAL_CTRL, 0b101 << 32);
        m.write(0x38d, 0x303);
        m.at.ip = 0x1000;
        let mut sampled = Vec::new();
        for n in 0..12 {
            let before = m.sample_index();
            m.tsc += 10;
            m.next(NOP);
            if m.sample_index() != before {
                let record = record(&m, Format::Adaptive, before);
                sampled.push((n, record.eventing_ip, record.applicable_counters));
            }
        }
        let at = |n: u64| Some(0x1000 + n);
        // Instructions: 2 events, then 4, and one that is sampled each time. Clocks, 10 an instruction from the second
        // one on: 45, then 30; they overflow at the sixth instruction.
        let expected = [
            (2, at(2), Some(1 << 32)),
            (6, at(6), Some(1 << 34)),
            (7, at(7), Some(1 << 32)),
            (10, at(10), Some(1 << 34)),
        ];
        assert_eq!(sampled, expected, "{profile}");
        assert_eq!(m.processor.violations(), &IntelViolations::default());
    }
}

/// Checks that only precise events are sampled, and only if AnyThread, E, INV and CMASK are clear.
#[test]
fn what_cannot_be_sampled_is_only_counted() {
    // Profile, counter, select, `true` if it can be sampled.
    let rows: [(&str, u32, u64, bool); 12] = [
        ("core2", 0, INSTRUCTIONS, true),
        ("core2", 0, 0xc4 | INSTRUCTIONS & !0xff, false),
        ("core2", 0, 0xc5 | INSTRUCTIONS & !0xff, true),
        ("nehalem", 3, INSTRUCTIONS, true),
        ("nehalem", 3, 0x1c4 | INSTRUCTIONS & !0xff, true),
        ("nehalem", 0, INSTRUCTIONS | 1 << 21, false),
        ("nehalem", 0, INSTRUCTIONS | 1 << 24, false),
        ("skylake", 0, INSTRUCTIONS, false),
        ("skylake", 1, 0x1c0 | INSTRUCTIONS & !0xff, true),
        ("skylake", 0, 0x1c0 | INSTRUCTIONS & !0xff, false),
        ("skylake", 3, BRANCHES, true),
        ("skylake", 3, 0xc4 | INSTRUCTIONS & !0xff, false),
    ];
    for (profile, counter, select, can) in rows {
        let mut m = machine(profile, 0x1000, 0x1000);
        m.write(PMC0 + counter, 0xffff_ffff);
        m.write(PEBS_ENABLE, 1 << counter);
        m.write(SELECT0 + counter, select);
        // A conditional branch that is mispredicted each time.
        for to in [0x2000, 0x3000, 0x4000, 0x5000] {
            m.at.ip = 0x1000;
            m.go(JZ, to);
        }
        assert_eq!(m.sample_index() != 0, can, "{profile} {counter} {select:#x}");
    }
}

/// Sources: those of the profiles' tables of events.
#[test]
fn far_branches_are_sampled_since_skylake() {
    for (profile, can) in [("broadwell", false), ("skylake", true)] {
        let mut m = machine(profile, 0x1000, 0x1000);
        sample(&mut m, 0x40c4 | INSTRUCTIONS & !0xff, 1);
        for from in [0x1000, 0x2000, 0x3000] {
            m.at.ip = from;
            m.far(SYSCALL, m.kernel(0x5000));
        }
        assert_eq!(m.sample_index() != 0, can, "{profile}");
    }
}

#[test]
fn without_its_bit_a_counter_is_not_sampled() {
    let mut m = machine("nehalem", 0x1000, 0x1000);
    sample(&mut m, INSTRUCTIONS, 1);
    m.write(PEBS_ENABLE, 0);
    (0..4).for_each(|_| m.next(NOP));
    assert_eq!((m.sample_index(), m.read(GLOBAL_STATUS)), (0, 1));
    for (profile, value, legal) in [
        ("core2", 1, true),
        ("core2", 2, false),
        ("nehalem", 0xf_0000_000f, true),
        ("nehalem", 0x10, false),
        ("nehalem", 1 << 63, false),
        ("skylake", 0xf_0000_000f, true),
        ("skylake", 1 << 36, false),
    ] {
        let mut m = machine(profile, 0x1000, 0x1000);
        assert_eq!(m.try_write(PEBS_ENABLE, value).is_ok(), legal, "{profile} {value:#x}");
        assert_eq!(m.read(PEBS_ENABLE), if legal { value } else { 0 });
    }
}

/// Checks "PEBS Interrupt Threshold": a PMI and OvfDSBuffer.
#[test]
fn reaching_the_threshold_raises_one_pmi() {
    let mut m = machine("skylake", 5 * 200, 2 * 200);
    sample(&mut m, BRANCHES, 1);
    for records in 1..=4 {
        m.jumps(2);
        assert_eq!(m.sample_index(), records * 200);
        let pmi = (records == 2).then_some(Pmi::Nmi);
        assert_eq!(m.processor.take_interrupt(), pmi, "{records}");
        let status = if records >= 2 { OVF_DS_BUFFER } else { 0 };
        assert_eq!(m.read(GLOBAL_STATUS), status, "{records}");
        m.processor.write_apic(0x340, 0x400);
    }
    m.write(GLOBAL_STATUS_RESET, OVF_DS_BUFFER);
    assert_eq!(m.read(GLOBAL_STATUS), 0);
}

/// Checks "PEBS Absolute Maximum": a record that does not fit is dropped, and no signal is generated.
#[test]
fn a_full_buffer_takes_nothing_more() {
    for (index, bytes) in [(0, 199), (0, 0), (200, 399), (u64::MAX, 1000)] {
        let mut m = machine("skylake", bytes, 0x1000);
        m.set_word(AREA + 0x28, SAMPLES.wrapping_add(index));
        sample(&mut m, BRANCHES, 1);
        let before = m.ram.clone();
        m.jumps(3);
        assert_eq!(m.ram, before, "{index} {bytes}");
        assert_eq!(m.processor.take_interrupt(), None);
        assert_ne!(m.processor.violations().samples_dropped, 0, "{index} {bytes}");
        // There is room again.
        m.set_word(AREA + 0x28, SAMPLES);
        m.set_word(AREA + 0x30, SAMPLES + 200);
        m.jumps(1);
        assert_eq!(m.sample_index(), 200);
    }
}

/// Checks that a record also resets the other counters that have overflowed by then.
#[test]
fn one_record_serves_all_counters_that_have_overflowed() {
    let mut m = machine("nehalem", 0x1000, 0x1000);
    m.write(GLOBAL_CTRL, 0);
    for counter in 0..2 {
        m.set_word(AREA + 0x40 + u64::from(counter) * 8, 0x1000 + u64::from(counter));
        m.write(PMC0 + counter, 0xffff_ffff);
        m.write(SELECT0 + counter, INSTRUCTIONS);
    }
    m.write(PEBS_ENABLE, 0b11);
    m.write(GLOBAL_CTRL, 0b11);
    m.next(NOP);
    m.next(NOP);
    assert_eq!(m.sample_index(), 176);
    assert_eq!((m.read(PMC0), m.read(PMC0 + 1)), (0x1000, 0x1001));
}

/// Checks "PEBS is processed before BTS", and that both PMIs are raised.
#[test]
fn samples_and_branch_records_of_one_instruction_are_both_stored() {
    let mut m = machine("skylake", 0x1000, 0x1000);
    m.set_area(&[BUFFER, BUFFER, BUFFER + 8 * 24, BUFFER + 8 * 24]);
    sample(&mut m, BRANCHES, 1);
    m.control(0xc0);
    m.jumps(2);
    assert_eq!((m.sample_index(), m.index()), (200, 2));
    // If the sample faults, the branch record of the same instruction is lost, too.
    m.pages.insert(SAMPLES / 4096, Err(PageFault { address: 0, code: 0 }));
    m.jumps(2);
    assert_eq!(m.processor.take_page_fault(), Some(PageFault { address: SAMPLES + 200, code: 0 }));
    assert_eq!((m.sample_index(), m.index()), (200, 3));
}

#[test]
fn outside_64_bit_mode_registers_have_32_bits() {
    let mut m = machine("nehalem", 0x1000, 0x1000);
    sample(&mut m, INSTRUCTIONS, 1);
    m.at.mode = crate::ExecMode::Bits32;
    m.next(NOP);
    m.processor.set_registers(Registers { rax: u64::MAX, r8_r15: [1; 8], ..Registers::default() }, &[0; 256]);
    m.next(NOP);
    let registers = record(&m, Format::Latency, 0).registers.expect("registers");
    assert_eq!((registers.rax, registers.r8_r15), (0xffff_ffff, [0; 8]));
}

#[test]
fn registers_that_were_not_given_are_0() {
    let mut m = machine("icelake", 0x1000, 0x1000);
    m.write(0x3f2, 0b0110);
    m.control(1);
    sample(&mut m, INSTRUCTIONS | 1 << 34, 1);
    m.at.ip = 0x1000;
    m.go(JMP, 0x2000);
    m.go(JMP, 0x3000);
    let found = record(&m, Format::Adaptive, 0);
    assert_eq!(found.registers, Some(Registers { rip: 0x3000, ..Registers::default() }));
    assert_eq!(found.xmm, Some(&[0; 256]));
}
