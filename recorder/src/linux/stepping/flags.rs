//! Handles PUSHF and POPF, which would show EFLAGS.TF, the flag that stepping sets, to the program, or change it.

use super::super::instruction::Special;
use super::tracee::Tracee;
use pugmark_model::ExecMode;
use std::io;

/// EFLAGS.TF is the first bit of the second byte.
const TRAP_FLAG: u8 = 1;

/// The flags that POPF changes at CPL 3, except TF, which belongs to stepping. Source: SDM vol. 2, "POPF".
///
/// ID is one of them, but Linux does not let a tracer change it (`FLAG_MASK` in `arch/x86/kernel/ptrace.c`). A program
/// that tries to change ID, to find out whether the processor has CPUID, finds that it cannot.
const POPPED: u64 = 0x24_4cd5;

/// Clears the flag on the stack after a step over PUSHF, which stepping has set and the program has not.
pub(super) fn clear_pushed_trap_flag(tracee: &Tracee) -> io::Result<()> {
    let at = tracee.registers()?.rsp + 1;
    let mut flags = [0];
    if tracee.read(at, &mut flags) == 1 { tracee.write(at, &[flags[0] & !TRAP_FLAG]) } else { Ok(()) }
}

/// Does the work of a POPF of `len` bytes without a step. After a step over it Linux would treat TF as the program's
/// own and would leave it set for a new thread. Returns false if the operand cannot be read; the step will then fault.
pub(super) fn pop(tracee: &Tracee, special: Special, len: u64, mode: ExecMode) -> io::Result<bool> {
    let Special::PopFlags { short } = special else { return Ok(false) };
    let mut registers = tracee.registers()?;
    let (size, changed) = match (short, mode) {
        (true, _) => (2, POPPED & 0xffff),
        (false, ExecMode::Bits64) => (8, POPPED),
        (false, _) => (4, POPPED),
    };
    let mut popped = [0; 8];
    if tracee.read(registers.rsp, &mut popped[..size]) != size {
        return Ok(false);
    }
    registers.eflags = registers.eflags & !changed | u64::from_le_bytes(popped) & changed;
    // If TF is set for stepping, Linux sets it again by itself.
    registers.eflags &= !(u64::from(TRAP_FLAG) << 8);
    registers.rsp += size as u64;
    registers.rip += len;
    tracee.set_registers(&registers)?;
    Ok(true)
}
