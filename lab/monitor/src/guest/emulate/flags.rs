//! PUSHF, POPF, STI and CLI.

use super::stack;
use crate::guest::cpu::{Cpu, Mode, cr4, rflags};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::lookahead::Size;
use crate::guest::memory::GuestMemory;

pub(super) fn pushf<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    size: Size,
) -> Result<(), GuestError> {
    // RF has been cleared before, and VM is 0 in every mode that is emulated here.
    stack::push(cpu, memory, size, cpu.rflags)
}

pub(super) fn popf<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    size: Size,
) -> Result<(), GuestError> {
    let [image] = stack::peek::<1, M>(cpu, memory, size, 0)?;
    stack::drop_elements(cpu, size, 1);
    let mut writable = rflags::STATUS_AND_DF | rflags::TF | rflags::NT;
    if size != Size::Word {
        writable |= rflags::AC | rflags::ID;
    }
    load(cpu, image, writable);
    Ok(())
}

/// Loads the flags in `writable` from `image`, and IF and IOPL if the privilege level allows it. POPF cannot set RF,
/// which has been cleared before.
pub(super) fn load(cpu: &mut Cpu, image: u64, writable: u64) {
    let mut writable = writable;
    if cpu.cpl <= cpu.iopl() {
        writable |= rflags::IF;
    }
    if cpu.cpl == 0 {
        writable |= rflags::IOPL;
    }
    cpu.rflags = cpu.rflags & !writable | image & writable | rflags::FIXED;
}

pub(super) fn sti(cpu: &mut Cpu) -> Result<(), GuestError> {
    if may_change_if(cpu) {
        cpu.rflags |= rflags::IF;
    } else if has_virtual_interrupts(cpu) && cpu.rflags & rflags::VIP == 0 {
        cpu.rflags |= rflags::VIF;
    } else {
        return Err(Exception::general_protection(0).into());
    }
    Ok(())
}

pub(super) fn cli(cpu: &mut Cpu) -> Result<(), GuestError> {
    if may_change_if(cpu) {
        cpu.rflags &= !rflags::IF;
    } else if has_virtual_interrupts(cpu) {
        cpu.rflags &= !rflags::VIF;
    } else {
        return Err(Exception::general_protection(0).into());
    }
    Ok(())
}

fn may_change_if(cpu: &Cpu) -> bool {
    cpu.mode() == Mode::Real || cpu.cpl <= cpu.iopl()
}

/// Returns whether protected-mode virtual interrupts apply: STI and CLI change VIF instead of IF at CPL 3.
fn has_virtual_interrupts(cpu: &Cpu) -> bool {
    cpu.cpl == 3 && cpu.cr4 & cr4::PVI != 0
}
