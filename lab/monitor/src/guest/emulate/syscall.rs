//! SYSCALL and SYSRET as on processors whose CPUID says GenuineIntel: in 64-bit mode only.

use crate::guest::cpu::{Cpu, Gpr, Mode, Segment, efer, rflags};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::lookahead::Size;

/// Flat 64-bit code, present, accessed; DPL 0.
pub(super) const CODE_64: u16 = 0xa9b;
/// Flat 32-bit code, present, accessed; DPL 0.
pub(super) const CODE_32: u16 = 0xc9b;
/// Flat writable data, present, accessed; DPL 0.
pub(super) const DATA: u16 = 0xc93;
/// DPL 3.
pub(super) const USER: u16 = 3 << 5;

/// Executes SYSCALL. In `cpu`, RIP is already past the instruction and RF is cleared.
pub(super) fn syscall(cpu: &mut Cpu) -> Result<(), GuestError> {
    if cpu.mode() != Mode::Bits64 || cpu.efer & efer::SCE == 0 {
        return Err(Exception::invalid_opcode().into());
    }
    let selector = (cpu.star >> 32) as u16 & 0xfffc;
    cpu.set(Gpr::Rcx, cpu.rip);
    cpu.set(Gpr::R11, cpu.rflags);
    cpu.rip = cpu.lstar;
    cpu.rflags = cpu.rflags & !cpu.sfmask | rflags::FIXED;
    cpu.cs = Segment::flat(selector, CODE_64);
    cpu.ss = Segment::flat(selector.wrapping_add(8), DATA);
    cpu.cpl = 0;
    Ok(())
}

/// Executes SYSRET. `size` is the operand size: with a quadword it returns to 64-bit mode, else to compatibility mode.
pub(super) fn sysret(cpu: &mut Cpu, size: Size) -> Result<(), GuestError> {
    /// The flags that R11 may set: neither VM nor RF nor a reserved bit.
    const RESTORED: u64 = 0x3c_7fd7;
    if cpu.mode() != Mode::Bits64 || cpu.efer & efer::SCE == 0 {
        return Err(Exception::invalid_opcode().into());
    }
    let to_64 = size == Size::Qword;
    let rcx = cpu.get(Gpr::Rcx);
    if cpu.cpl != 0 || to_64 && !cpu.is_canonical(rcx) {
        return Err(Exception::general_protection(0).into());
    }
    let base = (cpu.star >> 48) as u16;
    cpu.rip = if to_64 { rcx } else { rcx & 0xffff_ffff };
    cpu.rflags = cpu.get(Gpr::R11) & RESTORED | rflags::FIXED;
    cpu.cs = if to_64 {
        Segment::flat(base.wrapping_add(16) | 3, CODE_64 | USER)
    } else {
        Segment::flat(base | 3, CODE_32 | USER)
    };
    cpu.ss = Segment::flat(base.wrapping_add(8) | 3, DATA | USER);
    cpu.cpl = 3;
    Ok(())
}
