//! IBS execution sampling.

use super::machine::*;
use crate::amd::AmdSettings;
use crate::{DeliveryKind, Pmi};

const CUR: u32 = 32;

fn current(machine: &AmdMachine) -> u64 {
    machine.read(OP_CTL) >> CUR & 0x7ff_ffff
}

fn is_valid(machine: &AmdMachine) -> bool {
    machine.read(OP_CTL) & OP_VAL != 0
}

/// Prepares the machine so that the first op of the next instruction is tagged.
fn tag_next(machine: &mut AmdMachine) {
    machine.write(OP_CTL, OP_EN | OPS | 0x90 << CUR | 9);
}

#[test]
fn tags_the_op_that_the_maximum_count_names() {
    for name in ["trinity", "zen2", "zen3", "zen4", "zen5"] {
        let mut machine = AmdMachine::new(name);
        machine.ibs_by_nmi();
        machine.write(OP_CTL, OP_EN | OPS | 9);
        machine.loop_nops(9 * 16);
        assert!(!is_valid(&machine), "{name}");
        assert_eq!((machine.interrupts().len(), current(&machine)), (0, 9 * 16), "{name}");
        machine.at.ip = 0x41_2345;
        machine.next(NOP);
        assert!(is_valid(&machine), "{name}");
        assert_eq!(machine.read(OP_RIP), 0x41_2345, "{name}");
        assert_eq!(machine.interrupts(), [Pmi::Nmi], "{name}");
        machine.loop_nops(500);
        assert_eq!((machine.read(OP_RIP), machine.interrupts().len()), (0x41_2345, 0), "{name}");
        assert_eq!(machine.read(OP_CTL) & 0xfffff, OP_EN | OP_VAL | OPS | 9, "{name}");
    }
}

#[test]
fn counts_cycles_where_it_is_not_told_to_count_ops() {
    let mut machine = AmdMachine::new("barcelona");
    machine.ibs_by_nmi();
    machine.loop_nops(1);
    machine.write(OP_CTL, OP_EN | 16);
    machine.loop_nops(1);
    machine.write(OP_CTL, 0);
    machine.write(OP_CTL, OP_EN | 16);
    machine.loop_nops(100);
    // A miss of all caches, but not of the translation: 180 cycles and the instruction's own; the maximum ends the
    // count.
    let at = machine.at.ip;
    machine.at.ip += 0x40;
    machine.next(NOP);
    assert_eq!((current(&machine), is_valid(&machine)), (256, false));
    machine.at.ip = at;
    machine.next(NOP);
    assert_eq!((machine.read(OP_RIP), is_valid(&machine)), (at, true));
}

#[test]
fn the_tagged_op_may_be_any_of_an_instruction() {
    // IRET has eight ops; if fewer are left to count, one of its ops is tagged.
    for (before, tagged) in [(0, false), (1, true), (7, true), (8, true), (9, true)] {
        let mut machine = AmdMachine::new("zen4");
        machine.write(OP_CTL, OP_EN | OPS | (0x90 - 8 + before) << CUR | 9);
        machine.at.ip = 0x50_0000;
        machine.go(IRETQ, 0x40_0000);
        assert_eq!(is_valid(&machine), tagged, "{before}");
    }
}

#[test]
fn the_maximum_has_27_bits_where_it_is_extended() {
    let mut machine = AmdMachine::new("zen4");
    // The maximum is 7f_0009h times 16; the count starts 3 below it.
    machine.write(OP_CTL, OP_EN | OPS | 0x7f << 20 | 0x7f0_008d << CUR | 9);
    machine.loop_nops(3);
    assert!(!is_valid(&machine));
    machine.loop_nops(1);
    assert!(is_valid(&machine));
}

#[test]
fn the_count_is_software_s_to_set_where_it_can_be_written() {
    let mut machine = AmdMachine::new("zen2");
    machine.write(OP_CTL, OP_EN | OPS | 100 << CUR | 9);
    machine.loop_nops(3);
    assert_eq!(current(&machine), 103);
    let mut machine = AmdMachine::new("barcelona");
    machine.loop_nops(1);
    machine.write(OP_CTL, OP_EN | 100 << CUR | 9);
    machine.at.ip = 0x40_0000;
    machine.loop_nops(3);
    assert_eq!(current(&machine), 3);
    // The count does not restart when other fields are written, either.
    machine.write(OP_CTL, OP_EN | 10);
    assert_eq!(current(&machine), 3);
}

#[test]
fn a_sample_leaves_a_random_count_of_seven_bits_where_it_can_be_read() {
    let mut machine = AmdMachine::new("zen4");
    let mut counts = std::collections::BTreeSet::new();
    for _ in 0..600 {
        tag_next(&mut machine);
        machine.next(NOP);
        assert!(is_valid(&machine) && current(&machine) < 128);
        counts.insert(current(&machine));
    }
    assert!(counts.len() > 120, "{}", counts.len());
    let mut machine = AmdMachine::new("barcelona");
    machine.write(OP_CTL, OP_EN | 9);
    machine.loop_nops(2);
    assert_eq!((is_valid(&machine), current(&machine)), (true, 0));
}

#[test]
fn seeds_make_different_numbers() {
    let counts = |seed| {
        let mut machine = AmdMachine::with("zen4", AmdSettings { skid: 0, seed, ..AmdSettings::default() });
        [(); 8].map(|()| {
            tag_next(&mut machine);
            machine.next(NOP);
            current(&machine)
        })
    };
    assert_eq!(counts(1), counts(1));
    assert_ne!(counts(1), counts(2));
}

#[test]
fn reserved_maximums_and_counts_beyond_are_noted() {
    for (value, reserved, beyond) in [
        (OP_EN | OPS | 9, 0, 0),
        (OP_EN | OPS | 8, 1, 0),
        (OP_EN | OPS | 1, 1, 0),
        (OP_EN | OPS, 0, 0),
        (OPS | 1, 0, 0),
        (OP_EN | OPS | 0xa0 << CUR | 9, 0, 1),
        (OP_EN | OPS | 0x9f << CUR | 9, 0, 0),
        (OPS | 0xa0 << CUR | 9, 0, 0),
    ] {
        let mut machine = AmdMachine::new("zen4");
        machine.write(OP_CTL, value);
        let violations = machine.processor.violations();
        assert_eq!(
            (violations.reserved_op_counts, violations.counts_beyond_maximum),
            (reserved, beyond),
            "{value:#x}"
        );
    }
}

#[test]
fn a_count_beyond_the_maximum_has_to_wrap() {
    let mut machine = AmdMachine::new("zen4");
    machine.write(OP_CTL, OP_EN | OPS | 0x7ff_fff0 << CUR | 9);
    machine.loop_nops(16 + 0x90);
    assert!(!is_valid(&machine));
    machine.loop_nops(1);
    assert!(is_valid(&machine));
}

#[test]
fn a_maximum_of_zero_tags_nothing() {
    let mut machine = AmdMachine::new("zen4");
    machine.write(OP_CTL, OP_EN | OPS);
    machine.loop_nops(40);
    assert_eq!((is_valid(&machine), current(&machine)), (false, 40));
}

#[test]
fn a_fault_aborts_the_tagged_op() {
    let mut machine = AmdMachine::new("zen4");
    for (kind, aborted) in [
        (DeliveryKind::Fault, true),
        (DeliveryKind::Interrupt, false),
        (DeliveryKind::Trap, false),
        (DeliveryKind::SoftwareInterrupt, false),
    ] {
        tag_next(&mut machine);
        machine.deliver(kind);
        machine.next(NOP);
        assert_eq!(is_valid(&machine), !aborted, "{kind:?}");
        assert!(current(&machine) < 129, "{kind:?}");
    }
    // If no op was tagged yet, a fault does not change the count.
    machine.write(OP_CTL, OP_EN | OPS | 0x80 << CUR | 9);
    machine.deliver(DeliveryKind::Fault);
    assert_eq!(current(&machine), 0x80);
}

#[test]
fn a_sample_tells_what_became_of_a_branch() {
    const RETURN: u64 = 1 << 34;
    const TAKEN: u64 = 1 << 35;
    const MISP: u64 = 1 << 36;
    const RET: u64 = 1 << 37;
    const MISP_RETURN: u64 = 1 << 33;
    const MICROCODE: u64 = 1 << 40;
    const BRANCH: u64 = RETURN | TAKEN | MISP | RET | MISP_RETURN | MICROCODE;
    // The instruction, the address after 50_0000h, the number of its ops before the tagged one.
    type Row = (&'static str, &'static [u8], u64, u64, u64, Option<u64>);
    let rows: [Row; 13] = [
        ("zen4", NOP, 0x50_0001, 0, 0, None),
        ("zen4", JZ, 0x50_0042, 0, RET | TAKEN | MISP, Some(0x50_0042)),
        ("zen4", JZ, 0x50_0002, 0, RET, Some(0x50_0002)),
        ("zen4", JMP, 0x50_0042, 0, RET | TAKEN, Some(0x50_0042)),
        ("zen4", CALL, 0x50_0105, 0, 0, None),
        ("zen4", CALL, 0x50_0105, 1, RET | TAKEN, Some(0x50_0105)),
        ("zen4", super::machine::RET, 0x1234, 1, RET | TAKEN | RETURN | MISP, Some(0x1234)),
        ("trinity", super::machine::RET, 0x1234, 1, RET | TAKEN | RETURN | MISP | MISP_RETURN, Some(0x1234)),
        ("zen4", IRETQ, 0x1234, 6, MICROCODE, None),
        // From family 17h on.
        ("zen2", IRETQ, 0x1234, 6, MICROCODE, None),
        ("zen2", super::machine::RET, 0x1234, 1, RET | TAKEN | RETURN | MISP, Some(0x1234)),
        ("trinity", IRETQ, 0x1234, 6, 0, None),
        ("zen4", IRETQ, 0x1234, 7, RET | TAKEN | MISP | MICROCODE, Some(0x1234)),
    ];
    for (name, bytes, to, before, expected, target) in rows {
        let mut machine = AmdMachine::new(name);
        machine.write(BR_TARGET, 0x77);
        machine.write(OP_CTL, OP_EN | OPS | (0x90 - before) << CUR | 9);
        machine.at.ip = 0x50_0000;
        machine.go(bytes, to);
        assert!(is_valid(&machine));
        assert_eq!(machine.read(OP_RIP), 0x50_0000);
        assert_eq!(machine.read(OP_DATA) & BRANCH, expected, "{name} {bytes:x?} {before}");
        assert_eq!(machine.read(BR_TARGET), target.unwrap_or(0x77), "{name} {bytes:x?} {before}");
    }
}

#[test]
fn a_sample_has_the_op_s_latencies() {
    let mut machine = AmdMachine::new("zen4");
    tag_next(&mut machine);
    machine.next(NOP);
    // One cycle from completion to retirement; from the tag to retirement four, and those of the misses.
    assert_eq!(machine.read(OP_DATA) & 0xffff_ffff, 1 | (4 + 35 + 180) << 16);
    tag_next(&mut machine);
    machine.next(NOP);
    assert_eq!(machine.read(OP_DATA) & 0xffff_ffff, 1 | 4 << 16);
}

/// Returns IbsOpData2 and IbsOpData3 of a sample of `bytes` with `rbx` in RBX, after accesses to `known`.
fn data(name: &str, known: &[u64], bytes: &[u8], rbx: u64, before: u64) -> (u64, u64) {
    let mut machine = AmdMachine::new(name);
    machine.write(0xc001_0000, ALL | 0x40);
    for &rbx in known {
        machine.with_rbx(LOAD, rbx);
    }
    let counts_ops = if name == "barcelona" { 0 } else { OPS | (0x90 - before) << CUR };
    machine.write(OP_CTL, OP_EN | counts_ops | 9);
    if name == "barcelona" {
        machine.at.ip += 0x40;
        machine.next(NOP);
        assert!(!is_valid(&machine));
    }
    machine.with_rbx(bytes, rbx);
    assert!(is_valid(&machine), "{name} {bytes:x?}");
    if machine.read(OP_DATA3) & 1 << 17 != 0 {
        assert_eq!(machine.read(DC_LIN), rbx);
        assert_eq!(
            machine.read(DC_PHYS),
            if machine.read(OP_DATA3) & 1 << 18 != 0 { rbx + (1 << 30) } else { 0 }
        );
    }
    (machine.read(OP_DATA2), machine.read(OP_DATA3))
}

#[test]
fn a_sample_tells_of_the_data_accessed() {
    const LD: u64 = 1 << 0;
    const ST: u64 = 1 << 1;
    const L1_TLB: u64 = 1 << 2;
    const L2_TLB: u64 = 1 << 3;
    const MISS: u64 = 1 << 7;
    const MISALIGNED: u64 = 1 << 8;
    const LOCKED: u64 = 1 << 15;
    const LIN: u64 = 1 << 17;
    const PHYS: u64 = 1 << 18;
    const L2: u64 = 1 << 20;
    const SW_PF: u64 = 1 << 21;
    const QWORD: u64 = 4 << 22;
    const ADDR: u64 = LIN | PHYS;
    let miss = |cycles: u64| MISS | cycles << 32;
    let refill = |cycles: u64| cycles << 48;
    let walk = L1_TLB | L2_TLB | refill(35);
    let prefetch: &[u8] = &[0x0f, 0x18, 0x0b];
    let lock_add: &[u8] = &[0xf0, 0x48, 0x01, 0x03];
    type Row = (&'static str, &'static [u64], &'static [u8], u64, u64, (u64, u64));
    let rows: [Row; 17] = [
        ("zen4", &[], NOP, 0x1000, 0, (0, 0)),
        ("zen4", &[], LOAD, 0x1000, 0, (3, LD | ADDR | QWORD | miss(212) | L2 | walk)),
        ("zen2", &[], LOAD, 0x1000, 0, (3, LD | ADDR | QWORD | miss(212) | L2 | walk)),
        ("trinity", &[], LOAD, 0x1000, 0, (3, LD | ADDR | miss(212) | L1_TLB | L2_TLB)),
        ("barcelona", &[], LOAD, 0x1000, 0, (3, LD | ADDR | miss(212) | L1_TLB | L2_TLB)),
        ("zen4", &[0x1000], LOAD, 0x1008, 0, (0, LD | ADDR | QWORD)),
        ("zen4", &[0x1000], LOAD, 0x103c, 0, (0, LD | ADDR | QWORD | MISALIGNED)),
        ("zen4", &[0x1000], LOAD, 0x1038, 0, (0, LD | ADDR | QWORD)),
        ("zen4", &[0x1000, 0x3000], LOAD, 0x1000, 0, (0, LD | ADDR | QWORD | miss(12))),
        ("zen4", &[0x1000, 0x9000], LOAD, 0x1000, 0, (1, LD | ADDR | QWORD | miss(40) | L2)),
        ("zen2", &[0x1000, 0x9000], LOAD, 0x1000, 0, (2, LD | ADDR | QWORD | miss(40) | L2)),
        ("barcelona", &[0x1000, 0x9000], LOAD, 0x1000, 0, (1, LD | ADDR | miss(40))),
        // A store has no latency, and no source.
        ("zen4", &[], STORE, 0x1000, 0, (0, ST | ADDR | QWORD | MISS | L2 | walk)),
        // There are two ops: the first loads, the second stores.
        ("zen4", &[0x1000], lock_add, 0x1000, 0, (0, LD | ADDR | QWORD | LOCKED)),
        ("zen4", &[0x1000], lock_add, 0x1000, 1, (0, ST | ADDR | QWORD | LOCKED)),
        ("zen4", &[], prefetch, 0x1000, 0, (3, ADDR | SW_PF | MISS | L2 | walk)),
        // The address has no translation.
        ("zen4", &[0xffff_f000], LOAD, 0xffff_f000, 0, (0, LD | LIN | QWORD)),
    ];
    for (name, known, bytes, rbx, before, expected) in rows {
        let found = data(name, known, bytes, rbx, before);
        assert_eq!(
            found, expected,
            "{name} {known:x?} {bytes:x?} {before}: {:#x}, not {:#x}",
            found.1, expected.1
        );
    }
}

#[test]
fn a_line_that_a_cache_answered_with_has_a_state_where_the_processor_tells_it() {
    const OWNED: u64 = 1 << 5;
    // The state alternates from line to line; an address 512 lines higher maps to the same slot in levels 1 and 2.
    for (name, even, odd) in [
        ("barcelona", 1, 1),
        ("zen2", 2, 2 | OWNED),
        ("zen3", 2, 2),
        ("zen4", 1, 1 | OWNED),
        ("zen5", 1, 1 | OWNED),
    ] {
        for (line, expected) in [(0x1000, even), (0x1040, odd)] {
            let (data2, _) = data(name, &[line, line + 512 * 64], LOAD, line, 0);
            assert_eq!(data2, expected, "{name} {line:#x}");
        }
    }
}

#[test]
fn what_is_not_cached_is_told() {
    const UC: u64 = 1 << 14;
    let missed = |bytes, rbx| data("zen4", &[], bytes, rbx, 0);
    for (bytes, rbx, source, uncacheable) in [
        (LOAD, 0x1000, 3, false),
        (LOAD, UNCACHED, 3, true),
        (LOAD, DEVICE, 7, true),
        (STORE, DEVICE, 0, true),
    ] {
        let (data2, data3) = missed(bytes, rbx);
        assert_eq!((data2, data3 & UC != 0), (source, uncacheable), "{bytes:x?} {rbx:#x}");
    }
    // The number of previous accesses makes no difference.
    assert_eq!(data("zen4", &[DEVICE, DEVICE], LOAD, DEVICE, 0).0, 7);
    assert_eq!(data("zen4", &[0x1000, 0x1000], LOAD, 0x1000, 0).0, 0);
}

#[test]
fn the_size_of_the_page_is_told_by_level_or_in_a_field() {
    // The previous contents of the two levels of translation buffers; then bits 19 and 6 to 2.
    let hit = |rbx: u64| std::vec![rbx];
    let sixteen_pages_after = |rbx: u64| std::vec![rbx, rbx + 16 * 4096];
    for (name, field) in [("barcelona", false), ("zen4", false), ("zen5", true), ("zen6", true)] {
        for (rbx, size, l1_bit, l2_bit) in
            [(0x1000, 0, 0, 0), (LARGE, 1, 1 << 4, 1 << 6), (HUGE, 2, 1 << 5, 1 << 19)]
        {
            for (known, misses, bit) in [
                (hit(rbx), 0, l1_bit),
                (sixteen_pages_after(rbx), 1 << 2, l2_bit),
                (std::vec![], 0b11 << 2, 0),
            ] {
                let (_, data3) = data(name, &known, LOAD, rbx, 0);
                let page = if field { size << 4 } else { bit };
                assert_eq!(data3 & (1 << 19 | 0x7c), misses | page, "{name} {rbx:#x} {known:x?}");
            }
        }
    }
    // Without a translation the size of the page is unknown.
    assert_eq!(data("zen5", &[], LOAD, 0xffff_f000, 0).1 & 0b11 << 4, 0);
}

#[test]
fn registers_of_an_instruction_that_was_interrupted_are_not_the_next_ones() {
    for kind in [DeliveryKind::Interrupt, DeliveryKind::Nmi] {
        let mut machine = AmdMachine::new("zen4");
        tag_next(&mut machine);
        let mut registers = crate::amd::DataRegisters::default();
        registers.general[3] = 0x1_0000;
        machine.processor.set_registers(registers);
        machine.deliver(kind);
        machine.next(LOAD);
        assert_ne!(machine.read(OP_CTL) & OP_VAL, 0);
        assert_eq!((machine.read(OP_DATA3), machine.read(DC_LIN)), (0, 0), "{kind:?}");
    }
}

#[test]
fn without_registers_no_data_is_known() {
    let mut machine = AmdMachine::new("zen4");
    tag_next(&mut machine);
    assert!(machine.processor.wants_registers());
    machine.next(LOAD);
    assert_eq!(machine.read(OP_DATA3), 0);
    machine.write(OP_CTL, 0);
    assert!(!machine.processor.wants_registers());
}

#[test]
fn asks_for_registers_shortly_before_an_op_is_tagged() {
    // The counted unit (ops or cycles), maximum and current count, `true` if registers are needed.
    for (by, maximum, current, wanted) in [
        (OPS, 0x20, 0x200 - 33, false),
        (OPS, 0x20, 0x200 - 32, true),
        (OPS, 0x20, 0x200, true),
        // The count must wrap first.
        (OPS, 0x20, 0x200 + 16, false),
        (OPS, 0, 0, false),
        (0, 0x2000, 0, true),
        (0, 0, 0, false),
        (OPS | OP_VAL, 0x20, 0x200, false),
    ] {
        let mut machine = AmdMachine::new("zen4");
        machine.write(OP_CTL, OP_EN | by | current << CUR | maximum);
        assert_eq!(machine.processor.wants_registers(), wanted, "{by:#x} {maximum:#x} {current:#x}");
    }
}

/// Runs instructions of two ops each, without the registers for their data.
#[test]
fn what_executes_in_one_go_ends_where_registers_are_asked_for() {
    for (current, expected) in
        [(0x200 - 40, 4), (0x200 - 39, 4), (0x200 - 38, 3), (0x200 - 33, 1), (0x200 - 32, 1)]
    {
        let mut machine = AmdMachine::new("zen4");
        machine.write(OP_CTL, OP_EN | OPS | current << CUR | 0x20);
        assert_eq!(machine.processor.max_unreported(), expected, "{current:#x}");
        let asked = (0..expected).map(|_| {
            let asked = machine.processor.wants_registers();
            machine.next(ADD);
            asked
        });
        assert!(!asked.skip(1).any(|asked| asked), "{current:#x}");
        assert!(machine.processor.wants_registers(), "{current:#x}");
    }
    let mut machine = AmdMachine::new("zen4");
    machine.write(OP_CTL, OP_EN | OPS | OP_VAL | 0x20);
    assert_eq!(machine.processor.max_unreported(), u32::MAX);
    machine.write(OP_CTL, OP_EN | 0x20);
    assert_eq!(machine.processor.max_unreported(), 1, "by cycles");
}

#[test]
fn without_registers_there_are_as_many_ops() {
    for (bytes, ops) in [(NOP, 1), (LOAD, 1), (STORE, 1), (ADD, 2), (CALL, 2)] {
        let mut machine = AmdMachine::new("zen4");
        machine.write(OP_CTL, OP_EN | OPS | 0x20);
        machine.next(bytes);
        assert_eq!(current(&machine), ops, "{bytes:x?}");
    }
}

#[test]
fn the_filter_leaves_out_what_level_3_has_and_what_is_no_access() {
    const L3_MISS_ONLY: u64 = 1 << 16;
    // The tagged instruction and its address, `true` if a sample is reported.
    let rows: [(&[u8], u64, bool); 4] =
        [(NOP, 0x9000, false), (LOAD, 0x1000, false), (LOAD, 0x2000, true), (STORE, 0x2000, true)];
    for (bytes, rbx, reported) in rows {
        let mut machine = AmdMachine::new("zen4");
        machine.ibs_by_nmi();
        machine.with_rbx(LOAD, 0x1000);
        machine.write(OP_CTL, OP_EN | OPS | L3_MISS_ONLY | 0x90 << CUR | 9);
        machine.with_rbx(bytes, rbx);
        assert_eq!(is_valid(&machine), reported, "{bytes:x?} {rbx:#x}");
        assert_eq!(machine.interrupts().len(), usize::from(reported), "{bytes:x?} {rbx:#x}");
        // The count restarted with a random number.
        assert!(current(&machine) < 128);
    }
}

#[test]
fn the_latency_filter_leaves_out_loads_that_were_fast() {
    // The threshold, the address, `true` if its load is reported: the latency must be above (threshold + 1) * 128.
    for (threshold, rbx, reported) in [
        (0, 0x1000, true),
        (0, 0x9_0000, true),
        (1, 0x1000, false),
        (1, 0x1_2a00, true),
        (2, 0x1_7e00, true),
        (3, 0x1_7e00, false),
    ] {
        let mut machine = AmdMachine::new("zen6");
        machine.write(OP_CTL, OP_EN | OPS | 1 << 63 | threshold << 59 | 0x90 << CUR | 9);
        machine.with_rbx(LOAD, rbx);
        assert_eq!(is_valid(&machine), reported, "{threshold} {rbx:#x}");
    }
    let mut machine = AmdMachine::new("zen6");
    machine.write(OP_CTL, OP_EN | OPS | 1 << 63 | 0x90 << CUR | 9);
    machine.with_rbx(STORE, 0x1_7e00);
    assert!(!is_valid(&machine));
}

#[test]
fn some_samples_have_no_rip_where_the_processor_can_tell() {
    for (name, can_tell) in [("trinity", true), ("zen4", true), ("barcelona", false)] {
        let settings = AmdSettings { skid: 0, rip_invalid: 3, ..AmdSettings::default() };
        let mut machine = AmdMachine::with(name, settings);
        let invalid = [(); 6].map(|()| {
            machine.write(OP_CTL, 0);
            machine.write(OP_CTL, OP_EN | if name == "barcelona" { 0 } else { OPS | 0x90 << CUR } | 9);
            machine.loop_nops(if name == "barcelona" { 300 } else { 1 });
            assert!(is_valid(&machine));
            let invalid = machine.read(OP_DATA) >> 38 & 1 != 0;
            assert_eq!(machine.read(OP_RIP) == 0, invalid);
            invalid
        });
        assert_eq!(invalid, [false, false, can_tell, false, false, can_tell], "{name}");
    }
}

#[test]
fn a_count_is_beyond_a_maximum_that_is_there_and_only_while_it_counts() {
    // IbsOpCtl; the violations. The count is 10h in units of the maximum.
    for (control, beyond) in [
        (OP_EN | OPS | 9, 1),
        (OP_EN | OPS | 0x10, 0),
        (OP_EN | OPS | 0x11, 0),
        // A maximum of 0 tags nothing.
        (OP_EN | OPS, 0),
        (OPS | 9, 0),
        (OP_EN | OP_VAL | OPS | 9, 0),
    ] {
        let mut machine = AmdMachine::new("zen4");
        machine.write(OP_CTL, control | 0x100 << CUR);
        assert_eq!(machine.processor.violations().counts_beyond_maximum, beyond, "{control:#x}");
    }
}
