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
        for (register, bits) in [(OP_CTL2, 0b1111), (FETCH_CTL2, 0x7f)] {
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

/// MOVNTI and MOVNTDQ to \[RBX\], and the load MOVNTDQA, which is not a store.
const MOVNTI: &[u8] = &[0x48, 0x0f, 0xc3, 0x03];
const MOVNTDQ: &[u8] = &[0x66, 0x0f, 0xe7, 0x03];
const MOVNTDQA: &[u8] = &[0x66, 0x0f, 0x38, 0x2a, 0x03];
const ONLY_STREAMING: u64 = 1 << 3;
const STREAMING_STORE: u64 = 1 << 8;

/// Checks Linux, `arch/x86/include/asm/perf_event.h` (IBS_OP_2_STRM_ST_FILTER), `asm/amd/ibs.h` (strm_st).
#[test]
fn the_filter_leaves_streaming_stores_alone_and_each_has_its_bit() {
    for (instruction, streams) in [
        (MOVNTI, true),
        (MOVNTDQ, true),
        (MOVNTDQA, false),
        (STORE, false),
        (LOAD, false),
        (ADD, false),
        (NOP, false),
    ] {
        for filter in [0, ONLY_STREAMING] {
            // Up to the last op of two: the store.
            for count in [0x90, 0x8f] {
                let mut machine = AmdMachine::new("zen6");
                machine.write(OP_CTL2, filter);
                machine.write(OP_CTL, OP_EN | OPS | count << CUR | 9);
                machine.with_rbx(instruction, 0x50_0000);
                let taken = op_sampled(&machine);
                let bit = machine.read(OP_DATA2) & STREAMING_STORE != 0;
                assert_eq!(bit, taken && streams, "{instruction:x?} {filter} {count:x}");
                assert!(filter == 0 || taken == bit, "{instruction:x?} {count:x}");
                // The first op of an instruction with one op, or with two.
                if count == 0x90 {
                    assert_eq!(taken, filter == 0 || streams, "{instruction:x?}");
                }
            }
        }
    }
}

#[test]
fn processors_without_the_filter_have_no_bit_for_streaming_stores() {
    for profile in ["zen4", "zen5"] {
        let mut machine = AmdMachine::new(profile);
        assert!(machine.try_write(OP_CTL2, ONLY_STREAMING).is_err(), "{profile}");
        assert!(machine.try_write(OP_DATA2, STREAMING_STORE).is_err(), "{profile}");
        machine.write(OP_CTL, OP_EN | OPS | 0x90 << CUR | 9);
        machine.with_rbx(MOVNTI, 0x50_0000);
        assert!(op_sampled(&machine), "{profile}");
        assert_eq!(machine.read(OP_DATA2) & STREAMING_STORE, 0, "{profile}");
    }
    let mut machine = AmdMachine::new("zen6");
    // The streaming store, and data of another socket.
    machine.write(OP_DATA2, 0b11 << 8);
    assert!(machine.try_write(OP_DATA2, 1 << 10).is_err());
}
