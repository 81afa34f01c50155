//! The packets of VM entries and VM exits.

use super::VmxTransition;
use crate::intel::tests::machine::{ALL, BASE, CTL, JMP_RAX, MASK_PTRS, MOV_CR3, Machine, RANGE};
use crate::intel::{IntelProcessor, IntelProfile, IntelSettings};
use crate::{Context, CpuidResult, ExecMode, FlatMemory, GeneralProtection, Processor};
use std::string::String;

const GUEST: Context =
    Context { ip: 0x10_0000, cs_base: 0, cr3: 0x9000, cpl: 0, mode: ExecMode::Bits64, iflag: false };
const HOST: Context =
    Context { ip: 0x50_0000, cs_base: 0, cr3: 0x5000, cpl: 0, mode: ExecMode::Bits64, iflag: false };

fn machine() -> Machine {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    let profile = IntelProfile::by_name("skylake").unwrap();
    machine.processor = IntelProcessor::new(profile, IntelSettings::default()).with_vmx();
    machine.write(BASE, RANGE as u64);
    machine.write(MASK_PTRS, 0xffff);
    machine
}

fn transition(
    machine: &mut Machine,
    after: Context,
    rtit_ctl: Option<u64>,
    concealed: bool,
) -> Result<(), GeneralProtection> {
    let transition = VmxTransition { before: machine.at, after, tsc: machine.tsc, rtit_ctl, concealed };
    let mut memory = FlatMemory { base: 0, bytes: &mut machine.ram };
    match after.ip == GUEST.ip {
        true => machine.processor.vm_entry(&transition, &mut memory)?,
        false => machine.processor.vm_exit(&transition, &mut memory)?,
    }
    machine.at = after;
    Ok(())
}

/// Returns the packets after those of the enable.
fn packets(machine: &mut Machine) -> String {
    let trace = machine.trace().join("; ");
    trace.split_once("TIP.PGE 400000; ").map_or(trace.clone(), |(_, rest)| rest.into())
}

#[test]
fn a_system_wide_trace_shows_each_transition() {
    let mut machine = machine();
    machine.start(ALL);
    transition(&mut machine, GUEST, None, false).unwrap();
    machine.go(JMP_RAX, 0x10_1000);
    // A PIP of the guest's own.
    machine.far(MOV_CR3, Context { cr3: 0xa000, ip: 0x10_1003, ..GUEST });
    transition(&mut machine, HOST, None, false).unwrap();
    machine.go(JMP_RAX, 0x50_1000);
    machine.stop();
    let expected =
        "PIP 9000 nr; TIP 100000; TIP 101000; PIP a000 nr; FUP 101003; PIP 5000; TIP 500000; TIP 501000";
    let trace = packets(&mut machine);
    assert!(trace.starts_with(expected), "{trace}");
}

#[test]
fn a_concealed_transition_has_no_pip() {
    let mut machine = machine();
    machine.start(ALL);
    transition(&mut machine, GUEST, None, true).unwrap();
    transition(&mut machine, HOST, None, true).unwrap();
    machine.stop();
    let trace = packets(&mut machine);
    assert!(trace.starts_with("TIP 100000; FUP 100000; TIP 500000; "), "{trace}");
}

#[test]
fn a_trace_of_the_guest_alone_begins_and_ends_with_it() {
    let mut machine = machine();
    machine.go(JMP_RAX, 0x40_1000);
    transition(&mut machine, GUEST, Some(ALL), false).unwrap();
    assert_eq!(machine.read(CTL), ALL);
    machine.go(JMP_RAX, 0x10_1000);
    transition(&mut machine, HOST, Some(0), false).unwrap();
    assert_eq!(machine.read(CTL), 0);
    machine.go(JMP_RAX, 0x50_1000);
    let trace = packets(&mut machine);
    assert!(trace.starts_with("PSB; ") && trace.contains("PIP 9000 nr; "), "{trace}");
    assert!(trace.ends_with("TIP.PGE 100000; TIP 101000; FUP 101000; TIP.PGD -"), "{trace}");
    // The next PSB+ of the host identifies the host.
    machine.write(0x571, 0);
    machine.write(MASK_PTRS, 0xffff);
    machine.start(ALL);
    machine.stop();
    let trace = machine.trace().join("; ");
    assert!(trace.contains("PIP 5000; ") && !trace.contains("nr"), "{trace}");
}

#[test]
fn an_entry_that_loads_the_register_fails_while_tracing_and_with_reserved_bits() {
    let mut machine = machine();
    assert_eq!(transition(&mut machine, GUEST, Some(ALL | 1 << 63), false), Err(GeneralProtection));
    assert_eq!(machine.read(CTL), 0);
    machine.start(ALL);
    assert_eq!(transition(&mut machine, GUEST, Some(ALL), false), Err(GeneralProtection));
    assert_eq!(machine.read(CTL), ALL);
}

#[test]
fn only_a_processor_that_is_told_to_has_vmx() {
    let zero = CpuidResult::default();
    let with = machine().processor;
    assert_eq!((with.cpuid(1, 0, zero).ecx >> 5 & 1, with.read_msr(0x485)), (1, Ok(1 << 14)));
    let without = Machine::new("skylake", IntelSettings::default()).processor;
    assert_eq!((without.cpuid(1, 0, zero).ecx >> 5 & 1, without.owns_msr(0x485)), (0, false));
    assert_eq!(machine().try_write(0x485, 0), Err(GeneralProtection));
}

#[test]
fn a_vm_exit_clears_the_debug_control_register_and_a_vm_entry_does_not() {
    let mut machine = machine();
    // LBR, TR and BTS, FREEZE_LBRS_ON_PMI.
    for value in [0x1, 0xc0, 0x800] {
        machine.write(0x1d9, value);
        transition(&mut machine, GUEST, None, false).unwrap();
        assert_eq!(machine.processor.read_msr(0x1d9), Ok(value));
        transition(&mut machine, HOST, None, false).unwrap();
        assert_eq!(machine.processor.read_msr(0x1d9), Ok(0));
    }
}
