//! PEBS output to Intel PT: the records in the trace and their position, counters and PMIs.

use std::vec::Vec;

use pugmark_decoder_core::pebs::{PebsBlocks, PebsRecord};

use crate::intel::tests::debug_store::*;
use crate::intel::tests::machine::*;
use crate::intel::{IntelSettings, IntelViolations, Overflow, Registers};
use crate::{Context, ExecMode, FlatMemory, Pmi, Retired};

const PEBS_ENABLE: u32 = 0x3f1;
const DATA_CFG: u32 = 0x3f2;
const A_PMC0: u32 = 0x4c1;
const SELECT0: u32 = 0x186;
const RELOAD0: u32 = 0x14c1;
const RELOAD_FIXED0: u32 = 0x1309;
const FIXED0: u32 = 0x309;
const FIXED_CONTROL: u32 = 0x38d;
const GLOBAL_CTRL: u32 = 0x38f;
const TO_PT: u64 = 1 << 61;
const PMI_EACH: u64 = 1 << 60;
/// INST_RETIRED.ANY_P with Adaptive_Record, at all levels, enabled.
const INSTRUCTIONS: u64 = 0xc0 | 3 << 16 | 1 << 22 | 1 << 34;
/// Returns the value of a counter of 48 bits `period` events before its overflow.
const fn before(period: u64) -> u64 {
    (1 << 48) - period
}

fn settings() -> IntelSettings {
    IntelSettings { pmi_skid: 0, visibility: 0, ..IntelSettings::default() }
}

/// Returns a machine that traces with `ctl` and samples one instruction in `period`; `bits` go to IA32_PEBS_ENABLE.
fn sampling(settings: IntelSettings, ctl: u64, period: u64, bits: u64) -> Machine {
    let mut m = Machine::new("tremont", settings);
    m.processor.write_apic(0x340, 0x400);
    m.write(PEBS_ENABLE, TO_PT | bits | 1);
    m.write(RELOAD0, before(period));
    m.write(A_PMC0, before(period));
    m.start(ctl);
    m.write(SELECT0, INSTRUCTIONS);
    m.at.ip = 0x40_0000;
    m
}

/// Clears OvfDSBuffer without an instruction, so that nothing is counted.
fn acknowledge(m: &mut Machine) {
    let memory = &mut FlatMemory { base: 0, bytes: &mut [] };
    let at = Retired { before: m.at, after: m.at, bytes: WRMSR, tsc: 0, operand: 0 };
    m.processor.write_msr(SELECT0, 0, &at, memory).expect("legal");
    m.processor.write_msr(GLOBAL_STATUS_RESET, OVF_DS_BUFFER, &at, memory).expect("legal");
    m.processor.write_msr(SELECT0, INSTRUCTIONS, &at, memory).expect("legal");
}

/// Returns the records in the trace: the sampled IP and the IP of the FUP.
fn found(m: &mut Machine) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    let len = (m.read(MASK_PTRS) >> 32) as usize;
    let mut records = PebsBlocks::new(&m.ram[RANGE..RANGE + len]);
    while let Some(record) = records.next() {
        let record = record.expect("a record");
        all.push((record.record.eventing_ip.expect("an IP"), record.ip.expect("a FUP")));
    }
    all
}

#[test]
fn a_record_follows_the_packets_of_its_instruction() {
    let mut m = sampling(settings(), ALL, 1, 0);
    m.go(JMP_RAX, 0x40_1000);
    assert!(m.processor.wants_registers());
    m.processor.set_registers(Registers::default(), &[0; 256]);
    m.tsc = 77;
    m.go(JMP_RAX, 0x40_2000);
    m.go(JMP, 0x40_3000);
    m.stop();
    let record = "BBP 4 8; BIP 0 401000; BIP 1 1; BIP 2 4d; BEP ip; FUP 402000";
    let expected = std::format!("MODE.Exec 64; TIP.PGE 400000; TIP 401000; TIP 402000; {record}");
    assert_eq!(m.body(), expected);
    assert_eq!(m.processor.violations(), &IntelViolations::default());
}

/// Checks that the groups are those of MSR_PEBS_DATA_CFG, as in records that are stored.
#[test]
fn a_record_has_the_groups_that_are_asked_for() {
    let registers = Registers { rax: 7, rbx: 9, rsp: 11, r8_r15: [8; 8], ..Registers::default() };
    let xmm: [u8; 256] = core::array::from_fn(|at| at as u8);
    // MSR_PEBS_DATA_CFG; then memory, registers, XMM, number of branches.
    for (cfg, memory, gprs, with_xmm, branches) in [
        (0, false, false, false, 0),
        (0b0001, true, false, false, 0),
        (0b0010, false, true, false, 0),
        (0b0100, false, false, true, 0),
        (0b1000, false, false, false, 1),
        (1 << 24 | 0b1000, false, false, false, 2),
        (31 << 24 | 0b1111, true, true, true, 30),
    ] {
        let mut m = Machine::new("tremont", settings());
        m.write(DATA_CFG, cfg);
        m.control(1);
        m.write(PEBS_ENABLE, TO_PT | 1);
        m.write(A_PMC0, before(1));
        m.start(ALL);
        m.write(SELECT0, INSTRUCTIONS);
        m.at.ip = 0x40_1000;
        m.go(JMP, 0x40_2000);
        m.processor.set_registers(registers, &xmm);
        m.tsc = 77;
        m.go(JMP, 0x40_3000);
        m.stop();
        let len = (m.read(MASK_PTRS) >> 32) as usize;
        let mut records = PebsBlocks::new(&m.ram[RANGE..RANGE + len]);
        let record = records.next().expect("a record").expect("a whole one").record;
        assert_eq!(
            PebsRecord { branches: None, ..record },
            PebsRecord {
                eventing_ip: Some(0x40_2000),
                applicable_counters: Some(1),
                tsc: Some(77),
                memory: memory.then(Default::default),
                tx_abort: memory.then(Default::default),
                registers: gprs.then_some(Registers { rip: 0x40_3000, ..registers }),
                xmm: with_xmm.then_some(&xmm),
                ..PebsRecord::default()
            },
            "{cfg:#x}"
        );
        let ends: Vec<_> = record.branches.into_iter().flat_map(|all| all.iter()).collect();
        assert_eq!(ends.len(), branches, "{cfg:#x}");
        let expected: &[_] = &[(0x40_2000, 0x40_3000), (0x40_1000, 0x40_2000)];
        let ends = ends.iter().map(|branch| (branch.from, branch.to));
        assert!(ends.zip(expected).all(|(found, expected)| found == *expected), "{cfg:#x}");
    }
}

#[test]
fn a_counter_is_reloaded_from_its_register_and_the_next_record_follows() {
    for (period, reload) in [(3, 3), (3, 5)] {
        let mut m = sampling(settings(), ALL, period, 0);
        m.write(SELECT0, 0);
        m.write(RELOAD0, before(reload));
        m.write(SELECT0, INSTRUCTIONS);
        m.at.ip = 0x40_0000;
        // `period` events until the first overflow, `reload` until each later one, and one that is sampled each time.
        let expected: Vec<_> = (0..4).map(|n| 0x40_0000 + period + n * (reload + 1)).collect();
        for _ in 0..=expected[3] - 0x40_0000 {
            m.next(NOP);
        }
        assert_eq!(m.read(A_PMC0), before(reload));
        assert_eq!(m.read(GLOBAL_STATUS), 0, "the record clears the overflow");
        m.stop();
        let expected: Vec<_> = expected.into_iter().map(|ip| (ip, ip + 1)).collect();
        assert_eq!(found(&mut m), expected, "{reload}");
    }
}

/// Checks that each counter uses its own reload value, not another counter's.
#[test]
fn each_counter_is_reloaded_from_its_own_register() {
    // Fixed-function counter 0 counts instructions; so do general-purpose counters 0 and 2.
    for (counters, first, reload) in [(1_u64 << 32, 3, 5), (1 << 32, 2, 9), (1 << 2, 3, 5), (1, 4, 4)] {
        let mut m = Machine::new("tremont", settings());
        for (n, number) in (0..).zip((RELOAD0..RELOAD0 + 4).chain(RELOAD_FIXED0..RELOAD_FIXED0 + 3)) {
            m.write(number, before(1000 + n));
        }
        m.write(PEBS_ENABLE, TO_PT | counters);
        m.write(GLOBAL_CTRL, counters);
        let counter = counters.trailing_zeros();
        if counter == 32 {
            m.write(RELOAD_FIXED0, before(reload));
            m.write(FIXED0, before(first));
            m.start(ALL);
            m.write(FIXED_CONTROL, 3 | 1 << 32);
        } else {
            m.write(RELOAD0 + counter, before(reload));
            m.write(A_PMC0 + counter, before(first));
            m.start(ALL);
            m.write(SELECT0 + counter, INSTRUCTIONS);
        }
        m.at.ip = 0x40_0000;
        let expected: Vec<_> = (0..3).map(|n| 0x40_0000 + first + n * (reload + 1)).collect();
        for _ in 0..=expected[2] - 0x40_0000 {
            let next = expected.iter().find(|ip| **ip >= m.at.ip).expect("a sample");
            let unreported = u64::from(m.processor.max_unreported());
            assert_eq!(unreported, (next - m.at.ip).max(1), "{counters:#x}");
            m.next(NOP);
        }
        m.stop();
        let len = (m.read(MASK_PTRS) >> 32) as usize;
        let mut records = PebsBlocks::new(&m.ram[RANGE..RANGE + len]);
        let mut ips = Vec::new();
        while let Some(record) = records.next() {
            let record = record.expect("a record").record;
            assert_eq!(record.applicable_counters, Some(counters), "{counters:#x}");
            ips.push(record.eventing_ip.expect("an IP"));
        }
        assert_eq!(ips, expected, "{counters:#x}");
    }
}

#[test]
fn a_pmi_comes_after_each_record_where_it_is_asked_for_and_nowhere_else() {
    for each in [false, true] {
        let mut m = sampling(settings(), ALL, 2, if each { PMI_EACH } else { 0 });
        for n in 1..=9 {
            m.processor.write_apic(0x340, 0x400);
            m.next(NOP);
            let sampled = each && n % 3 == 0;
            assert_eq!(m.processor.take_interrupt(), sampled.then_some(Pmi::Nmi), "{each} {n}");
            let overflow = u64::from(n % 3 == 2);
            let status = if sampled { OVF_DS_BUFFER } else { overflow };
            assert_eq!(m.read(GLOBAL_STATUS), status, "{each} {n}");
            acknowledge(&mut m);
        }
        m.stop();
        assert_eq!(found(&mut m).len(), 3);
    }
}

/// Checks that bits 62:61 are 00 or 01, with bit 60. The registers have as many bits as a counter.
#[test]
fn registers_have_their_bits_where_records_can_go_to_intel_pt() {
    let rows: [(&str, u32, u64, bool); 20] = [
        ("tremont", PEBS_ENABLE, 0xf, true),
        ("tremont", PEBS_ENABLE, 1 << 4, false),
        ("tremont", PEBS_ENABLE, 7 << 32, true),
        ("tremont", PEBS_ENABLE, 1 << 35, false),
        ("tremont", PEBS_ENABLE, PMI_EACH, true),
        ("tremont", PEBS_ENABLE, TO_PT, true),
        ("tremont", PEBS_ENABLE, TO_PT | PMI_EACH | 0xf, true),
        ("tremont", PEBS_ENABLE, 1 << 62, false),
        ("tremont", PEBS_ENABLE, 3 << 61, false),
        ("tremont", PEBS_ENABLE, 1 << 63, false),
        ("icelake", PEBS_ENABLE, PMI_EACH, false),
        ("icelake", PEBS_ENABLE, TO_PT, false),
        ("tremont", RELOAD0, (1 << 48) - 1, true),
        ("tremont", RELOAD0 + 3, 1, true),
        ("tremont", RELOAD0, 1 << 48, false),
        ("tremont", RELOAD0 + 4, 0, false),
        ("icelake", RELOAD0, 0, false),
        ("tremont", RELOAD_FIXED0 + 2, (1 << 48) - 1, true),
        ("tremont", RELOAD_FIXED0 + 3, 0, false),
        ("icelake", RELOAD_FIXED0, 0, false),
    ];
    for (profile, msr, value, legal) in rows {
        let mut m = Machine::new(profile, settings());
        assert_eq!(m.try_write(msr, value).is_ok(), legal, "{profile} {msr:#x} {value:#x}");
        let expected = if legal { Some(value) } else { m.processor.read_msr(msr).ok().map(|_| 0) };
        assert_eq!(m.processor.read_msr(msr).ok(), expected, "{profile} {msr:#x} {value:#x}");
    }
}

#[test]
fn what_is_not_traced_is_not_sampled_either_but_the_counter_goes_on() {
    // IA32_RTIT_CTL: off; user only; and a filter that excludes the code.
    let filter = ALL | 1 << 32;
    for ctl in [0, ALL & !4, filter, ALL, ALL & !0x2000] {
        let mut m = sampling(settings(), ctl, 3, 0);
        for _ in 0..8 {
            m.next(NOP);
        }
        assert_eq!(m.read(A_PMC0), before(3), "{ctl:#x}");
        m.stop();
        // Without BranchEn there is a record, too.
        let expected: &[_] = if ctl & !0x2000 == ALL & !0x2000 {
            &[(0x40_0003, 0x40_0004), (0x40_0007, 0x40_0008)]
        } else {
            &[]
        };
        assert_eq!(found(&mut m), expected, "{ctl:#x}");
    }
}

#[test]
fn outside_64_bit_mode_registers_have_four_bytes_and_there_are_ten() {
    let mut m = Machine::new("tremont", settings());
    m.write(DATA_CFG, 0b10);
    m.write(PEBS_ENABLE, TO_PT | 1);
    m.write(A_PMC0, before(1));
    m.start(ALL);
    m.write(SELECT0, INSTRUCTIONS);
    m.far(NOP, Context { ip: 0x1000, mode: ExecMode::Bits32, ..m.at });
    let registers = Registers { rax: 0x1_2222_3333, r8_r15: [8; 8], ..Registers::default() };
    m.processor.set_registers(registers, &[0; 256]);
    m.next(NOP);
    m.stop();
    let trace = m.body();
    assert!(trace.contains("BBP 1 4; BIP 0 0; BIP 1 1001; BIP 2 22223333; BIP 3 0"), "{trace}");
    assert!(trace.contains("BIP 9 0; BEP ip; FUP 1001"), "{trace}");
}

/// Checks that a record that does not fit into the internal buffer as a whole is damaged, and an OVF follows.
#[test]
fn an_overflow_can_cut_a_record() {
    let overflow = Some(Overflow { capacity: 128, drain: 1 });
    let mut m = Machine::new("tremont", IntelSettings { overflow, ..settings() });
    m.write(DATA_CFG, 0b10);
    m.write(PEBS_ENABLE, TO_PT | 1);
    m.write(RELOAD0, before(1000));
    m.write(A_PMC0, before(300));
    m.start(ALL);
    m.write(SELECT0, INSTRUCTIONS);
    for _ in 0..600 {
        m.next(NOP);
    }
    m.stop();
    let len = (m.read(MASK_PTRS) >> 32) as usize;
    let mut records = PebsBlocks::new(&m.ram[RANGE..RANGE + len]);
    let error = records.next().expect("a record").expect_err("damaged");
    assert_eq!(error.kind, pugmark_decoder_core::ErrorKind::UnexpectedPacket("OVF"));
    assert!(records.next().is_none());
}
