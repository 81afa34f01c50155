//! XSAVES and XRSTORS of PT state on a processor that traces.

use crate::intel::tests::machine::{ALL, BASE, CTL, JMP_RAX, MASK_PTRS, Machine, RANGE, STATUS};
use crate::intel::{IntelProcessor, IntelProfile, IntelSettings};
use crate::{Context, CpuidResult, FlatMemory, GeneralProtection, Processor, Retired};
use std::string::String;
use std::vec;
use std::vec::Vec;

const XSS: u32 = 0xda0;
const PT: u64 = 1 << 8;
const XSAVES: &[u8] = &[0x48, 0x0f, 0xc7, 0x2f];
const XRSTORS: &[u8] = &[0x48, 0x0f, 0xc7, 0x1f];

fn machine() -> Machine {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.processor =
        IntelProcessor::new(IntelProfile::by_name("skylake").unwrap(), IntelSettings::default())
            .with_pt_state();
    machine.write(BASE, RANGE as u64);
    machine.write(MASK_PTRS, 0xffff);
    machine.write(XSS, PT);
    machine
}

fn area() -> Vec<u8> {
    vec![0; 704]
}

fn field(area: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(area[offset..offset + 8].try_into().unwrap())
}

fn set(area: &mut [u8], offset: usize, value: u64) {
    area[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

fn at(machine: &mut Machine, bytes: &'static [u8]) -> Retired<'static> {
    let after = Context { ip: machine.at.ip + bytes.len() as u64, ..machine.at };
    let retired = Retired { before: machine.at, after, bytes, tsc: machine.tsc, operand: 0 };
    machine.at = after;
    retired
}

fn save(machine: &mut Machine, area: &mut [u8]) {
    let at = at(machine, XSAVES);
    let mut memory = FlatMemory { base: 0, bytes: &mut machine.ram };
    machine.processor.xsaves(area, PT, &at, &mut memory);
}

fn restore(machine: &mut Machine, area: &[u8]) -> Result<(), GeneralProtection> {
    let at = at(machine, XRSTORS);
    let mut memory = FlatMemory { base: 0, bytes: &mut machine.ram };
    machine.processor.xrstors(area, PT, &at, &mut memory)
}

fn packets(machine: &mut Machine) -> String {
    machine.trace().join("; ")
}

#[test]
fn the_registers_are_saved_in_the_manuals_order_and_the_trace_ends() {
    let mut machine = machine();
    machine.write(0x572, 0x7000);
    for n in 0..4 {
        machine.write(0x580 + n, 0x40_0000 + u64::from(n));
    }
    machine.start(ALL);
    machine.go(JMP_RAX, 0x50_0000);
    let mut area = area();
    area.fill(0x77);
    save(&mut machine, &mut area);
    assert_eq!(machine.read(CTL), ALL - 1, "TraceEn is clear");
    let registers = [CTL, BASE, MASK_PTRS, STATUS, 0x572, 0x580, 0x581, 0x582, 0x583];
    for (n, register) in registers.into_iter().enumerate() {
        // IA32_RTIT_CTL is saved with its value before XSAVES.
        let traced = u64::from(register == CTL);
        assert_eq!(field(&area, 576 + 8 * n), machine.read(register) | traced, "{register:#x}");
    }
    assert!(field(&area, 576 + 16) >> 32 > 0, "all packets are written when the position is saved");
    assert_eq!((field(&area, 512), field(&area, 520)), (PT, 1 << 63 | PT));
    assert!(area[648..704].iter().all(|&byte| byte == 0), "what is reserved is 0");
    assert!(area[..512].iter().all(|&byte| byte == 0x77), "the legacy region was not asked for");
    assert!(packets(&mut machine).contains("TIP.PGD"), "the trace says where it ends");
}

#[test]
fn a_restored_trace_goes_on_at_the_next_instruction() {
    let mut machine = machine();
    machine.start(ALL);
    machine.go(JMP_RAX, 0x50_0000);
    let mut area = area();
    save(&mut machine, &mut area);
    for register in [CTL, STATUS, BASE, MASK_PTRS] {
        machine.write(register, 0);
    }
    assert_eq!(restore(&mut machine, &area), Ok(()));
    assert_eq!(machine.read(CTL), ALL);
    let next = machine.at.ip;
    machine.go(JMP_RAX, 0x60_0000);
    machine.stop();
    let trace = packets(&mut machine);
    assert_eq!(trace.matches("PSB;").count(), 1, "PacketByteCnt was restored: {trace}");
    assert!(trace.contains(&std::format!("TIP.PGE {next:x}; TIP 600000")), "{trace}");
}

#[test]
fn a_component_that_is_not_in_use_is_initialized() {
    let mut machine = machine();
    let mut area = area();
    save(&mut machine, &mut area);
    machine.write(0x572, 0x7000);
    set(&mut area, 512, 0);
    assert_eq!(restore(&mut machine, &area), Ok(()));
    assert_eq!((machine.read(0x572), machine.read(BASE)), (0, 0));
}

#[test]
fn a_component_that_is_not_enabled_is_left_alone() {
    let mut machine = machine();
    machine.start(ALL);
    machine.write(XSS, 0);
    let mut area = area();
    area[576..].fill(0x77);
    save(&mut machine, &mut area);
    assert_eq!((field(&area, 512), field(&area, 520)), (0, 1 << 63));
    assert!(area[576..].iter().all(|&byte| byte == 0x77), "nothing is saved");
    assert_eq!(machine.read(CTL), ALL, "it goes on");
    assert_eq!(restore(&mut machine, &area), Ok(()), "there is nothing to restore");
    // An area that already has the component is refused.
    set(&mut area, 520, 1 << 63 | PT);
    assert_eq!(restore(&mut machine, &area), Err(GeneralProtection));
}

#[test]
fn what_xrstors_refuses_leaves_the_trace_as_it_was() {
    let mut machine = machine();
    machine.start(ALL);
    let mut good = area();
    save(&mut machine, &mut good);
    // (fault, offset in the area, value there)
    let table = [
        ("the standard format", 520, PT),
        ("a component that the format does not have", 512, PT | 1 << 2),
        ("a component that is not enabled", 520, 1 << 63 | PT | 1 << 9),
        ("a reserved byte of the header", 568, 1),
        ("a reserved bit of IA32_RTIT_CTL", 576, ALL | 1 << 63),
        ("a reserved bit of IA32_RTIT_STATUS", 600, 1 << 3),
        ("an address that is not canonical", 616, 1 << 62),
    ];
    for (what, offset, value) in table {
        let mut area = good.clone();
        set(&mut area, offset, value);
        assert_eq!(restore(&mut machine, &area), Err(GeneralProtection), "{what}");
        assert_eq!(machine.read(CTL), ALL - 1, "{what}");
    }
    assert_eq!(restore(&mut machine, &good), Ok(()));
    // While TraceEn is set nothing is restored, not even the same values.
    assert_eq!(restore(&mut machine, &good), Err(GeneralProtection));
    assert_eq!(machine.read(CTL), ALL);
}

#[test]
fn only_a_processor_that_is_told_to_enumerates_the_component() {
    let with = machine().processor;
    let zero = CpuidResult::default();
    assert_eq!(with.cpuid(1, 0, zero).ecx >> 26 & 3, 3);
    let one = with.cpuid(0x0d, 1, zero);
    assert_eq!((one.eax, one.ecx), (1 << 3, 1 << 8));
    assert_eq!(with.cpuid(0x0d, 8, zero), CpuidResult { eax: 128, ebx: 0, ecx: 1, edx: 0 });
    let without = Machine::new("skylake", IntelSettings::default()).processor;
    assert_eq!(without.cpuid(0x0d, 8, zero), zero);
    assert!(!without.owns_msr(XSS));
    assert_eq!(without.read_msr(XSS), Err(GeneralProtection));
    let mut machine = machine();
    assert_eq!(machine.try_write(XSS, PT | 1), Err(GeneralProtection), "bits of no component");
}
