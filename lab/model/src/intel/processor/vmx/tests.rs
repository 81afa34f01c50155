//! The packets of VM entries and VM exits.

use super::VmxTransition;
use crate::intel::tests::machine::{ALL, BASE, CTL, JMP_RAX, MASK_PTRS, MOV_CR3, Machine, RANGE};
use crate::intel::{IntelProcessor, IntelProfile, IntelSettings};
use crate::{Context, CpuidResult, ExecMode, FlatMemory, GeneralProtection, Processor};
use pugmark_decoder_core::event::{EventDecoder, EventKind};
use std::string::String;
use std::vec;

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

#[test]
fn a_concealed_guest_does_not_know_that_it_is_one() {
    let mut machine = machine();
    machine.start(ALL);
    transition(&mut machine, GUEST, None, true).unwrap();
    machine.far(MOV_CR3, Context { cr3: 0xa000, ip: 0x10_0003, ..GUEST });
    transition(&mut machine, HOST, None, false).unwrap();
    transition(&mut machine, GUEST, None, false).unwrap();
    machine.stop();
    let trace = packets(&mut machine);
    assert!(
        trace.starts_with("TIP 100000; PIP a000; FUP 100003; PIP 5000; TIP 500000; PIP 9000 nr; "),
        "{trace}"
    );
}

const VMPTRLD: &[u8] = &[0x0f, 0xc7, 0x33];

fn vmptrld(machine: &mut Machine, base: u64) {
    let mut memory = FlatMemory { base: 0, bytes: &mut machine.ram };
    machine.processor.vmptrld(base, &machine.at, machine.tsc, &mut memory);
    machine.next(VMPTRLD);
}

/// Starts a trace anew, and returns its PSB+ without PIP and mode.
fn psb_plus(machine: &mut Machine) -> String {
    machine.write(0x571, 0);
    machine.write(MASK_PTRS, 0xffff);
    machine.at = HOST;
    machine.write(CTL, ALL);
    machine.stop();
    let trace = machine.trace().join("; ");
    let (psb_plus, _) = trace.split_once("; MODE.TSX").expect("a PSB+");
    psb_plus.into()
}

#[test]
fn vmptrld_and_each_psb_in_vmx_operation_show_the_vmcs() {
    let mut machine = machine();
    machine.start(ALL);
    vmptrld(&mut machine, 0x7000);
    machine.go(JMP_RAX, 0x40_2000);
    machine.stop();
    assert_eq!(machine.body(), "MODE.Exec 64; TIP.PGE 400000; VMCS 7000; TIP 402000");
    // While nothing is traced VMPTRLD only changes what a PSB+ shows.
    assert_eq!(psb_plus(&mut machine), "PSB; CBR 30; PIP 5000; VMCS 7000");
    vmptrld(&mut machine, 0x9000);
    assert_eq!(psb_plus(&mut machine), "PSB; CBR 30; PIP 5000; VMCS 9000");
    machine.processor.vmclear_current();
    assert_eq!(psb_plus(&mut machine), "PSB; CBR 30; PIP 5000; VMCS ffffffffff000");
    machine.processor.vmxoff();
    assert_eq!(psb_plus(&mut machine), "PSB; CBR 30; PIP 5000");
    // Code at another level is not traced, and neither is its VMPTRLD.
    machine.write(0x571, 0);
    machine.write(MASK_PTRS, 0xffff);
    machine.write(CTL, 0x2009);
    vmptrld(&mut machine, 0x7000);
    machine.stop();
    assert!(!machine.trace().join("; ").contains("VMCS"));
}

#[test]
fn a_psb_of_a_concealed_guest_has_no_vmcs() {
    for (concealed, shown) in [(true, false), (false, true)] {
        let mut machine = machine();
        machine.start(ALL);
        vmptrld(&mut machine, 0x7000);
        transition(&mut machine, GUEST, None, concealed).unwrap();
        for n in 0..1000 {
            machine.go(JMP_RAX, 0x10_0000 + n % 2);
        }
        machine.stop();
        let trace = machine.trace().join("; ");
        let (_, last) = trace.rsplit_once("PSB; ").expect("a PSB in the guest");
        assert_eq!(last.contains("VMCS 7000; "), shown, "{last}");
        assert!(trace.matches("PSB; ").count() > 1);
    }
}

#[test]
fn a_decoder_finds_the_vmcs_at_vmptrld() {
    let mut machine = machine();
    machine.start(ALL);
    vmptrld(&mut machine, 0x7000);
    machine.stop();
    let len = (machine.read(MASK_PTRS) >> 32) as usize;
    let mut events = EventDecoder::new(&machine.ram[RANGE..RANGE + len]);
    events.sync_forward().expect("a PSB");
    let mut found = vec![];
    while let Some(event) = events.next().expect("an event") {
        if let EventKind::Vmcs(vmcs) = event.kind {
            found.push((vmcs.base, event.status));
        }
    }
    assert_eq!(found, [(0x7000, false)]);
}
