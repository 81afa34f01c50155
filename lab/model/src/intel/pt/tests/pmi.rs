//! PMIs of filled ToPA regions, from the entry to the local APIC.

use crate::Pmi;
use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;

const TABLE: u64 = 0x1000;
const INT: u64 = 4;
const STOP: u64 = 0x10;
const PERFEVTSEL0: u32 = 0x186;
const GLOBAL_STATUS: u32 = 0x38e;
const GLOBAL_CTRL: u32 = 0x38f;
const GLOBAL_STATUS_RESET: u32 = 0x390;

fn machine(skid: u32, entries: &[u64]) -> Machine {
    let settings = IntelSettings { pmi_skid: skid, visibility: 0, ..IntelSettings::default() };
    let mut machine = Machine::new("icelake", settings);
    for (index, entry) in entries.iter().enumerate() {
        let at = TABLE as usize + index * 8;
        machine.ram[at..at + 8].copy_from_slice(&entry.to_le_bytes());
    }
    machine.write(BASE, TABLE);
    machine.write(MASK_PTRS, 0);
    machine.processor.write_apic(0x340, 0x400);
    machine
}

/// Executes indirect jumps until the status bit is set. Returns their number.
fn until_signalled(machine: &mut Machine) -> u32 {
    for count in 0..20_000 {
        if machine.read(GLOBAL_STATUS) & 1 << 55 != 0 {
            return count;
        }
        machine.go(JMP_RAX, 0x40_0000 + u64::from(count % 2) * 0x10);
    }
    panic!("no PMI");
}

#[test]
fn an_int_region_raises_a_pmi_that_comes_late() {
    for skid in [0, 1, 40] {
        let mut machine = machine(skid, &[0x1_0000 | INT, 0x1_2000, TABLE | 1]);
        machine.start(ALL | TOPA);
        assert!(until_signalled(&mut machine) > 1000);
        assert_ne!(machine.ram[0x1_0fff], 0);
        for _ in 0..skid {
            assert_eq!(machine.processor.take_interrupt(), None);
            machine.next(NOP);
        }
        assert_eq!(machine.processor.take_interrupt(), Some(Pmi::Nmi), "{skid}");
        assert_eq!(machine.processor.read_apic(0x340), 0x400 | 1 << 16);
        assert_eq!(machine.read(GLOBAL_STATUS), 1 << 55);
        machine.write(GLOBAL_STATUS_RESET, 1 << 55);
        assert_eq!(machine.read(GLOBAL_STATUS), 0);
        assert_eq!(machine.processor.violations(), &crate::intel::IntelViolations::default());
    }
}

#[test]
fn programs_alone_are_traced_while_os_is_clear_and_nothing_else_is_on_or_on_its_way() {
    const OS: u64 = 1 << 2;
    const DEBUGCTL: u32 = 0x1d9;
    let mut machine = machine(40, &[0x1_0000 | INT, 0x1_2000, TABLE | 1]);
    assert!(!machine.processor.traces_programs_only() && !machine.processor.is_traced(), "nothing is on");
    machine.start((ALL | TOPA) & !OS);
    assert!(machine.processor.traces_programs_only());
    assert!(machine.processor.is_traced());
    machine.write(DEBUGCTL, 1);
    assert!(!machine.processor.traces_programs_only(), "last branch records");
    machine.write(DEBUGCTL, 0);
    assert!(machine.processor.traces_programs_only());
    machine.far(SYSCALL, machine.user(0x1000));
    until_signalled(&mut machine);
    assert!(!machine.processor.traces_programs_only(), "a PMI is on its way");
    machine.write(0x570, 0);
    machine.write(DEBUGCTL, 1);
    assert!(!machine.processor.is_traced(), "last branch records only");
    machine.write(DEBUGCTL, 0);
    machine.start(ALL | TOPA);
    assert!(!machine.processor.traces_programs_only(), "the kernel is traced");
}

#[test]
fn tracing_goes_on_during_the_skid() {
    let mut machine = machine(100, &[0x1_0000 | INT, 0x1_2000, TABLE | 1]);
    machine.start(ALL | TOPA);
    until_signalled(&mut machine);
    while machine.processor.take_interrupt().is_none() {
        machine.go(JMP_RAX, 0x40_0000 + machine.at.ip % 2 * 0x10);
    }
    machine.stop();
    assert_eq!(machine.read(MASK_PTRS) as u32, 1 << 7 | 0x7f, "in the next region");
    assert!(machine.read(MASK_PTRS) >> 32 > 100);
}

#[test]
fn a_pmi_on_its_way_arrives_when_tracing_ends() {
    // The same if a counter stays enabled: it counts user code, and the kernel's WRMSRs are not user code.
    for counters in [0, 1] {
        let mut machine = machine(1000, &[0x1_0000 | INT, 0x1_2000, TABLE | 1]);
        machine.write(PERFEVTSEL0, 1 << 22 | 1 << 16 | 0xc0);
        machine.write(GLOBAL_CTRL, counters);
        machine.start(ALL | TOPA);
        until_signalled(&mut machine);
        assert_eq!(machine.processor.take_interrupt(), None);
        machine.stop();
        assert_eq!(machine.processor.needs_each_instruction(), counters == 1);
        assert_eq!(machine.processor.take_interrupt(), Some(Pmi::Nmi));
    }
}

#[test]
fn a_pmi_on_its_way_arrives_at_hlt() {
    let mut machine = machine(1000, &[0x1_0000 | INT, 0x1_2000, TABLE | 1]);
    machine.start(ALL | TOPA);
    until_signalled(&mut machine);
    machine.next(&[0xf4]);
    assert_eq!(machine.processor.take_interrupt(), Some(Pmi::Nmi));
}

#[test]
fn the_flush_itself_can_raise_a_pmi() {
    let mut machine = machine(1000, &[0x1_0000 | INT, 0x1_2000, TABLE | 1]);
    machine.write(MASK_PTRS, 0xff0 << 32);
    machine.start(ALL | TOPA);
    machine.stop();
    assert_eq!(machine.read(GLOBAL_STATUS), 1 << 55);
    assert_eq!(machine.processor.take_interrupt(), Some(Pmi::Nmi));
}

#[test]
fn stop_and_int_together_leave_no_room_for_the_skid() {
    let mut machine = machine(10, &[0x1_0000 | INT | STOP, 0x1_2000, TABLE | 1]);
    machine.start(ALL | TOPA);
    until_signalled(&mut machine);
    assert_eq!(machine.read(STATUS) & 0x24, 0x20, "STOP comes first");
    assert_eq!(machine.processor.violations().stopped_in_skid, 1);
    // After STOP has stopped the trace, the PMI still arrives after further instructions.
    for _ in 0..10 {
        machine.next(NOP);
    }
    assert_eq!(machine.processor.take_interrupt(), Some(Pmi::Nmi));
}

#[test]
fn a_stop_before_the_pmi_arrives_leaves_no_room_for_the_skid() {
    let mut machine = machine(4000, &[0x1_0000 | INT, 0x1_2000 | STOP, TABLE | 1]);
    machine.start(ALL | TOPA);
    until_signalled(&mut machine);
    for n in 0..2000 {
        machine.go(JMP_RAX, 0x40_0000 + n % 2 * 0x10);
    }
    assert_eq!(machine.read(STATUS) & 0x20, 0x20);
    assert_eq!(machine.processor.violations().stopped_in_skid, 1);
}

#[test]
fn while_the_entry_is_masked_the_pmi_is_dropped() {
    let mut machine = machine(0, &[0x1_0000 | INT, 0x1_2000, TABLE | 1]);
    machine.processor.write_apic(0x340, 0x400 | 1 << 16);
    machine.start(ALL | TOPA);
    until_signalled(&mut machine);
    machine.processor.write_apic(0x340, 0x400);
    machine.next(NOP);
    assert_eq!(machine.processor.take_interrupt(), None);
    assert_eq!(machine.read(GLOBAL_STATUS), 1 << 55);
    assert_eq!(machine.processor.violations().pmis_dropped, 1);
}

#[test]
fn a_pmi_taken_back_at_the_stop_is_raised_by_the_next_enable() {
    const INJECT: u64 = 1 << 56;
    let mut machine = machine(1000, &[0x1_0000 | INT, 0x1_2000, TABLE | 1]);
    machine.start(ALL | TOPA | INJECT);
    until_signalled(&mut machine);
    machine.stop();
    assert_eq!(machine.processor.take_interrupt(), None);
    assert_eq!(machine.read(STATUS) & 0xc0, 1 << 7);
    machine.write(GLOBAL_STATUS_RESET, 1 << 55);
    machine.start(ALL | TOPA | INJECT);
    assert_eq!(machine.read(STATUS) & 0xc0, 0);
    assert_eq!(machine.read(GLOBAL_STATUS), 1 << 55);
    for _ in 0..1000 {
        machine.next(NOP);
    }
    machine.next(NOP);
    assert_eq!(machine.processor.take_interrupt(), Some(Pmi::Nmi));
}
