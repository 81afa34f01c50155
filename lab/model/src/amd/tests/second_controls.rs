//! The second control registers of IBS.

use super::machine::*;

const OP_CTL2: u32 = 0xc001_103e;
const FETCH_CTL2: u32 = 0xc001_103f;
const DIS: u64 = 1 << 0;
/// The lowest bit of IbsOpCurCnt.
const CUR: u32 = 32;

/// Returns a machine that tags the next op, with this value of the second control register.
fn tag_op(control2: u64) -> AmdMachine {
    let mut machine = AmdMachine::new("zen6");
    machine.write(OP_CTL2, control2);
    machine.write(OP_CTL, OP_EN | OPS | 0x90 << CUR | 9);
    machine
}

/// Returns a machine that tags the next fetch, with this value of the second control register.
fn tag_fetch(control2: u64) -> AmdMachine {
    let mut machine = AmdMachine::new("zen6");
    machine.write(FETCH_CTL2, control2);
    machine.write(FETCH_CTL, FETCH_EN | 9 << 16 | 9);
    machine
}

/// Returns true if there is a sample of an op.
fn op_sampled(machine: &AmdMachine) -> bool {
    machine.read(OP_CTL) & OP_VAL != 0
}

/// Returns true if there is a sample of a fetch.
fn fetch_sampled(machine: &AmdMachine) -> bool {
    machine.read(FETCH_CTL) & FETCH_VAL != 0
}

#[test]
fn bits_that_are_not_announced_fault() {
    for bit in 0..64 {
        for (register, bits) in [(OP_CTL2, 0b111), (FETCH_CTL2, 0x7f)] {
            let mut machine = AmdMachine::new("zen6");
            assert_eq!(machine.read(register), 0, "after reset");
            let written = machine.try_write(register, 1 << bit);
            assert_eq!(written.is_ok(), bits & 1_u64 << bit != 0, "{register:#x} {bit}");
            assert_eq!(machine.read(register), bits & 1 << bit, "{register:#x} {bit}");
        }
    }
}

#[test]
fn a_unit_that_is_disabled_counts_nothing_and_keeps_its_count() {
    for (mut machine, register, sampled) in [
        (tag_op(DIS), OP_CTL2, op_sampled as fn(&AmdMachine) -> bool),
        (tag_fetch(DIS), FETCH_CTL2, fetch_sampled),
    ] {
        assert!(!machine.processor.needs_each_instruction() && !machine.processor.wants_registers());
        machine.next(NOP);
        assert!(!sampled(&machine), "{register:#x}");
        machine.write(register, 0);
        assert!(machine.processor.needs_each_instruction());
        machine.at.ip += 0x1000;
        machine.next(NOP);
        assert!(sampled(&machine), "{register:#x}");
    }
}

#[test]
fn filters_by_the_highest_bit_leave_out_a_half_of_the_addresses() {
    let (low, high) = (0x41_0000, 0xffff_ffff_8100_0000);
    for (op2, fetch2, in_low, in_high) in [
        (0, 0, true, true),
        // The two registers have these bits in opposite order.
        (0b010, 1 << 6, false, true),
        (0b100, 1 << 5, true, false),
        (0b110, 0b11 << 5, false, false),
    ] {
        for (address, taken) in [(low, in_low), (high, in_high)] {
            let (mut op, mut fetch) = (tag_op(op2), tag_fetch(fetch2));
            for machine in [&mut op, &mut fetch] {
                machine.at.ip = address;
                machine.next(NOP);
            }
            let sampled = (op_sampled(&op), fetch_sampled(&fetch));
            assert_eq!(sampled, (taken, taken), "{op2:#b} {fetch2:#b} {address:#x}");
        }
    }
}

#[test]
fn the_latency_filter_leaves_out_fetches_that_were_fast() {
    // The filter is in units of 128 cycles. The caches are empty at first: a walk, and 180 cycles or more by the line.
    for (filter, address, taken) in [
        (0, 0x41_0000, true),
        (1, 0x41_0000, true),
        (2, 0x41_0000, false),
        (2, 0x41_7e00, true),
        (3, 0x41_7e00, true),
        (4, 0x41_7e00, false),
        (15, 0x41_7e00, false),
    ] {
        let mut machine = tag_fetch(filter << 1);
        machine.at.ip = address;
        machine.next(NOP);
        let latency = machine.read(FETCH_CTL) >> 32 & 0xffff;
        assert_eq!(fetch_sampled(&machine), taken, "{filter} {address:#x}: {latency}");
        // A fetch that hits the caches takes one cycle.
        let mut machine = tag_fetch(DIS | filter << 1);
        machine.at.ip = address;
        machine.next(NOP);
        // A fetch elsewhere.
        machine.at.ip = 0x52_3480;
        machine.next(NOP);
        machine.write(FETCH_CTL2, filter << 1);
        machine.at.ip = address;
        machine.next(NOP);
        assert_eq!(fetch_sampled(&machine), filter == 0, "{filter} {address:#x}");
    }
}
