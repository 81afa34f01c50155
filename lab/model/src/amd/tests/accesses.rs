//! The data that instructions access, tested by the address in a sample.

use super::machine::*;
use crate::ExecMode;
use crate::amd::DataRegisters;

/// Returns the sampled linear address of an instruction, and whether it loads and stores.
fn access(bytes: &[u8], before: u64, mode: ExecMode) -> Option<(u64, bool, bool)> {
    let mut machine = AmdMachine::new("zen4");
    machine.write(OP_CTL, OP_EN | OPS | (0x90 - before) << 32 | 9);
    machine.at.mode = mode;
    let mut general = [0; 16];
    for (number, value) in general.iter_mut().enumerate() {
        *value = 0x1_0001_0000 + 0x1000 * number as u64;
    }
    machine.processor.set_registers(DataRegisters { general, fs_base: 0x7000_0000, gs_base: 0x9000_0000 });
    machine.next(bytes);
    let data = machine.read(OP_DATA3);
    (data & 1 << 17 != 0).then(|| (machine.read(DC_LIN), data & 1 != 0, data & 2 != 0))
}

#[test]
fn addresses_are_made_of_registers_scale_displacement_and_segment() {
    use ExecMode::{Bits32, Bits64};
    type Row = (&'static [u8], u64, ExecMode, Option<(u64, bool, bool)>);
    let rows: [Row; 23] = [
        (&[0x90], 0, Bits64, None),
        // LEA RAX, [RBX]; a long NOP.
        (&[0x48, 0x8d, 0x03], 0, Bits64, None),
        (&[0x0f, 0x1f, 0x03], 0, Bits64, None),
        // MOV RAX, [RBX + RCX*8 + 10h].
        (
            &[0x48, 0x8b, 0x44, 0xcb, 0x10],
            0,
            Bits64,
            Some((0x1_0001_3000 + 8 * 0x1_0001_1000 + 0x10, true, false)),
        ),
        // MOV [R15], EAX.
        (&[0x41, 0x89, 0x07], 0, Bits64, Some((0x1_0001_f000, false, true))),
        // MOV RAX, FS:[0]; MOV RAX, GS:[8].
        (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], 0, Bits64, Some((0x7000_0000, true, false))),
        (&[0x65, 0x48, 0x8b, 0x04, 0x25, 8, 0, 0, 0], 0, Bits64, Some((0x9000_0008, true, false))),
        // MOV EAX, [RIP + 100h], at 400002h.
        (&[0x8b, 0x05, 0, 1, 0, 0], 0, Bits64, Some((0x40_0108, true, false))),
        // The same by EIP. A prefetch neither loads nor stores.
        (&[0x67, 0x8b, 0x05, 0, 1, 0, 0], 0, Bits64, Some((0x40_0109, true, false))),
        (&[0x67, 0x8b, 0x05, 0, 0, 0, 0x80], 0, Bits64, Some((0x8040_0009, true, false))),
        (&[0x0f, 0x18, 0x0d, 0, 1, 0, 0], 0, Bits64, Some((0x40_0109, false, false))),
        (&[0x67, 0x0f, 0x18, 0x0d, 0, 1, 0, 0], 0, Bits64, Some((0x40_010a, false, false))),
        // MOV EAX, [EBX] by a 32-bit address.
        (&[0x67, 0x8b, 0x03], 0, Bits64, Some((0x1_3000, true, false))),
        // PUSH RAX, POP RAX, CALL, RET.
        (&[0x50], 0, Bits64, Some((0x1_0001_4000 - 8, false, true))),
        (&[0x58], 0, Bits64, Some((0x1_0001_4000, true, false))),
        (&[0xe8, 0, 0, 0, 0], 1, Bits64, Some((0x1_0001_4000 - 8, false, true))),
        (&[0xc3], 0, Bits64, Some((0x1_0001_4000, true, false))),
        // PUSH [RBX]: of two accesses, the one that loads.
        (&[0xff, 0x33], 0, Bits64, Some((0x1_0001_3000, true, false))),
        // MOVSB, CALL [RBX]: the same.
        (&[0xa4], 0, Bits64, Some((0x1_0001_6000, true, false))),
        (&[0xff, 0x13], 0, Bits64, Some((0x1_0001_3000, true, false))),
        // LODSB, STOSB.
        (&[0xac], 0, Bits64, Some((0x1_0001_6000, true, false))),
        (&[0xaa], 0, Bits64, Some((0x1_0001_7000, false, true))),
        // MOV EAX, [EBX].
        (&[0x8b, 0x03], 0, Bits32, Some((0x1_3000, true, false))),
    ];
    for (bytes, before, mode, expected) in rows {
        assert_eq!(access(bytes, before, mode), expected, "{bytes:x?}");
    }
}
