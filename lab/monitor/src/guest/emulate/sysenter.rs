//! SYSENTER and SYSEXIT.

use super::syscall::{CODE_32, CODE_64, DATA, USER};
use crate::guest::cpu::{Cpu, Gpr, Mode, Segment, rflags};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::lookahead::Size;

pub(super) fn sysenter(cpu: &mut Cpu) -> Result<(), GuestError> {
    let selector = cpu.sysenter_cs as u16 & 0xfffc;
    if cpu.mode() == Mode::Real || selector == 0 {
        return Err(Exception::general_protection(0).into());
    }
    let long = cpu.is_long_mode();
    let mask = if long { u64::MAX } else { 0xffff_ffff };
    cpu.rflags &= !(rflags::VM | rflags::IF);
    cpu.set(Gpr::Rsp, cpu.sysenter_esp & mask);
    cpu.rip = cpu.sysenter_eip & mask;
    cpu.cs = Segment::flat(selector, if long { CODE_64 } else { CODE_32 });
    cpu.ss = Segment::flat(selector.wrapping_add(8), DATA);
    cpu.cpl = 0;
    Ok(())
}

/// Executes SYSEXIT. `size` is the operand size: with a quadword it returns to 64-bit mode, else to 32-bit code.
pub(super) fn sysexit(cpu: &mut Cpu, size: Size) -> Result<(), GuestError> {
    let selector = cpu.sysenter_cs as u16 & 0xfffc;
    if cpu.mode() == Mode::Real || selector == 0 || cpu.cpl != 0 {
        return Err(Exception::general_protection(0).into());
    }
    let (rsp, rip) = (cpu.get(Gpr::Rcx), cpu.get(Gpr::Rdx));
    let base = if size == Size::Qword {
        if !cpu.is_canonical(rsp) || !cpu.is_canonical(rip) {
            return Err(Exception::general_protection(0).into());
        }
        cpu.set(Gpr::Rsp, rsp);
        cpu.rip = rip;
        let base = (cpu.sysenter_cs as u16).wrapping_add(32) | 3;
        cpu.cs = Segment::flat(base, CODE_64 | USER);
        base
    } else {
        cpu.set(Gpr::Rsp, rsp & 0xffff_ffff);
        cpu.rip = rip & 0xffff_ffff;
        let base = (cpu.sysenter_cs as u16).wrapping_add(16) | 3;
        cpu.cs = Segment::flat(base, CODE_32 | USER);
        base
    };
    cpu.ss = Segment::flat(base.wrapping_add(8), DATA | USER);
    cpu.cpl = 3;
    Ok(())
}
