//! Output to memory: the time and the place of each byte.

use crate::intel::pt::Pt;
use crate::intel::tests::machine::*;
use crate::intel::{IntelProfile, IntelSettings, OperationalError, Overflow};

/// A table of three regions of 4 KiB at 1_0000h, 1_2000h and 1_4000h, and an END entry that points back to the table.
const TABLE: u64 = 0x1000;

fn with_table(settings: IntelSettings, bits: [u64; 3]) -> Machine {
    let mut machine = Machine::new("skylake", settings);
    let regions = [0x1_0000, 0x1_2000, 0x1_4000];
    let end = TABLE | 1;
    let entries = [regions[0] | bits[0], regions[1] | bits[1], regions[2] | bits[2], end];
    for (index, entry) in entries.into_iter().enumerate() {
        set_entry(&mut machine, index, entry);
    }
    machine.write(BASE, TABLE);
    machine.write(MASK_PTRS, 0);
    machine
}

fn set_entry(machine: &mut Machine, index: usize, entry: u64) {
    let at = TABLE as usize + index * 8;
    machine.ram[at..at + 8].copy_from_slice(&entry.to_le_bytes());
}

/// Executes indirect jumps that make about `bytes` bytes of packets, three bytes each.
fn fill(machine: &mut Machine, bytes: usize) {
    for n in 0..bytes / 3 {
        machine.go(JMP_RAX, 0x40_0000 + (n as u64 % 2) * 0x10);
    }
}

#[test]
fn the_last_bytes_stay_inside_until_tracing_ends() {
    for visibility in [0, 64, 200] {
        let mut machine = Machine::new("skylake", IntelSettings { visibility, ..IntelSettings::default() });
        machine.start(ALL);
        fill(&mut machine, 3000);
        let written = machine.ram[RANGE..].iter().rposition(|&byte| byte != 0).expect("bytes") as u64 + 1;
        let seen = machine.read(MASK_PTRS) >> 32;
        assert!(0 < seen && seen < written, "the MSR lags the memory: {seen} {written}");
        machine.stop();
        let all = machine.read(MASK_PTRS) >> 32;
        assert!(all >= written + u64::from(visibility), "{visibility}: {written} {all}");
    }
}

#[test]
fn the_single_range_wraps() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(BASE, 0x2_0000);
    machine.write(MASK_PTRS, 0xff0 << 32 | 0xfff);
    machine.start(ALL);
    fill(&mut machine, 0x800);
    machine.stop();
    let offset = machine.read(MASK_PTRS) >> 32;
    assert!((0x800..0x900).contains(&offset), "{offset:x}");
    assert_eq!(machine.ram[0x2_0ff0..0x2_0ff4], [0x02, 0x82, 0x02, 0x82]);
    assert_eq!(machine.ram[0x2_1000], 0);
    assert_eq!(machine.read(STATUS) & 0x30, 0);
}

#[test]
fn a_stop_entry_cuts_the_trace_and_keeps_the_pointers() {
    let mut machine = with_table(IntelSettings::default(), [0, 0x10, 0]);
    machine.start(ALL | TOPA);
    fill(&mut machine, 0x3000);
    assert_eq!(machine.read(STATUS) & 0x34, 0x20, "Stopped, TriggerEn clear");
    machine.stop();
    assert_eq!(machine.read(BASE), TABLE);
    assert_eq!(machine.read(MASK_PTRS), 0x1000 << 32 | 1 << 7 | 0x7f);
    assert_ne!(machine.ram[0x1_2ffa..0x1_3000], [0; 6]);
    assert!(machine.ram[0x1_4000..].iter().all(|&byte| byte == 0));
    // If tracing is enabled with these pointers and Stopped clear, the offset is an operational error.
    machine.write(STATUS, 0);
    machine.start(ALL | TOPA);
    assert_eq!(machine.read(STATUS) & 0x34, 0x10);
    assert_eq!(
        machine.processor.operational_error(),
        Some(OperationalError::OffsetBeyondRange { offset: 0x1000 })
    );
    assert_eq!(machine.processor.violations().stopped_in_skid, 0);
}

#[test]
fn an_operational_error_ends_the_trace_and_sticks() {
    let mut machine = with_table(IntelSettings::default(), [0, 2, 0]);
    machine.start(ALL | TOPA);
    assert_eq!(machine.read(STATUS) & 0x34, 0x04);
    fill(&mut machine, 0x2000);
    assert_eq!(machine.read(STATUS) & 0x34, 0x10);
    machine.stop();
    assert_eq!(machine.read(STATUS) & 0x34, 0x10);
    let error = OperationalError::ReservedBits { address: TABLE + 8, entry: 0x1_2002 };
    assert_eq!(machine.processor.operational_error(), Some(error));
    // While Error is set nothing is generated, although the table is correct by then.
    set_entry(&mut machine, 1, 0x1_2000);
    machine.start(ALL | TOPA);
    fill(&mut machine, 0x100);
    machine.stop();
    assert_eq!(machine.read(MASK_PTRS), 1 << 7 | 0x7f);
    machine.write(STATUS, 0);
    machine.start(ALL | TOPA);
    machine.stop();
    assert_eq!(machine.ram[0x1_2000..0x1_2002], [0x02, 0x82]);
}

#[test]
fn a_bad_single_range_is_an_operational_error_at_once() {
    let mut machine = Machine::new("skylake", IntelSettings::default());
    machine.write(BASE, 0x1800);
    machine.write(MASK_PTRS, 0xfff);
    machine.start(ALL);
    assert_eq!(machine.read(STATUS) & 0x34, 0x10);
    machine.stop();
    assert_eq!(machine.read(MASK_PTRS), 0xfff);
}

#[test]
fn output_goes_round_through_the_tables() {
    let mut machine = with_table(IntelSettings::default(), [0, 0, 0]);
    machine.start(ALL | TOPA);
    fill(&mut machine, 0x3800);
    machine.stop();
    let pointers = machine.read(MASK_PTRS);
    assert_eq!(pointers & 0xffff_ffff, 0x7f, "in entry 0 again");
    assert!(pointers >> 32 > 0x700);
    assert_eq!(machine.read(STATUS) & 0x30, 0);
    assert_eq!(machine.processor.violations(), &crate::intel::IntelViolations::default());
}

#[test]
fn editing_a_live_table_is_a_violation() {
    let mut machine = with_table(IntelSettings::default(), [0, 0, 0]);
    machine.start(ALL | TOPA);
    set_entry(&mut machine, 1, 0x3_0000);
    fill(&mut machine, 0x1800);
    machine.stop();
    assert_ne!(machine.ram[0x1_2000], 0, "the entry was cached");
    assert_eq!(machine.ram[0x3_0000], 0);
    let violations = machine.processor.violations();
    assert_eq!((violations.live_table_edits, violations.first_live_edit), (1, Some(TABLE + 8)));
}

#[test]
fn the_trace_transport_subsystem_swallows_its_bytes() {
    let mut machine = Machine::new("sapphire-rapids", IntelSettings::default());
    machine.start(ALL | 1 << 6);
    fill(&mut machine, 0x1000);
    machine.stop();
    assert_eq!(machine.read(STATUS) & 0x30, 0);
    assert!(machine.ram.iter().all(|&byte| byte == 0));
    assert_eq!(machine.read(MASK_PTRS), 0xffff);
}

#[test]
fn no_more_than_an_eighth_of_the_internal_buffer_is_held_back() {
    let profile = IntelProfile::by_name("skylake").expect("skylake");
    // The requested capacity; the maximum number of bytes held back.
    for (capacity, most) in
        [(None, 256), (Some(2048), 256), (Some(9999), 256), (Some(1000), 125), (Some(128), 16), (Some(0), 16)]
    {
        let overflow = capacity.map(|capacity| Overflow { capacity, drain: 7 });
        for visibility in [0, 1, 15, 16, 17, 125, 126, 255, 256, 257, 5000] {
            let pt = Pt::new(profile, IntelSettings { visibility, overflow, ..IntelSettings::default() });
            assert_eq!(pt.held_back, (visibility as usize).min(most), "{capacity:?} {visibility}");
            assert_eq!(pt.bytes_per_instruction, capacity.map(|_| 7));
        }
    }
}
