//! Delivery in real-address mode: the interrupt vector table, and a frame of words.

use super::frame::EventFrame;
use crate::guest::cpu::{Cpu, Gpr, rflags};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::linear::{SegmentName, read_linear, segment_address, write_linear};
use crate::guest::memory::GuestMemory;
use crate::guest::paging::{Access, AccessKind};

/// Delivers the event. No error code is pushed in this mode.
///
/// Source: SDM vol. 3, 8086 Emulation, "Interrupt and Exception Handling".
pub(super) fn enter<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    frame: &EventFrame,
) -> Result<(), GuestError> {
    let index = u64::from(frame.vector) * 4;
    if index + 3 > u64::from(cpu.idtr.limit) {
        return Err(Exception::general_protection(0).into());
    }
    let mut target = [0; 4];
    let access = Access::implicit(AccessKind::Read);
    read_linear(cpu, memory, cpu.idtr.base.wrapping_add(index), &mut target, access)?;

    let pushed = [frame.return_rip as u16, cpu.cs.selector, frame.rflags as u16];
    let mut bytes = [0; 6];
    for (slot, value) in bytes.chunks_exact_mut(2).zip(pushed) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
    let sp = cpu.get(Gpr::Rsp).wrapping_sub(6) & 0xffff;
    let linear = segment_address(cpu, SegmentName::Ss, sp, 6, AccessKind::Write)?;
    write_linear(cpu, memory, linear, &bytes, Access::at_cpl(cpu, AccessKind::Write))?;

    let selector = u16::from_le_bytes([target[2], target[3]]);
    cpu.cs.selector = selector;
    cpu.cs.base = u64::from(selector) << 4;
    cpu.rip = u64::from(u16::from_le_bytes([target[0], target[1]]));
    cpu.set(Gpr::Rsp, cpu.get(Gpr::Rsp) & !0xffff | sp);
    cpu.rflags = frame.handler_rflags(true) & !rflags::AC;
    Ok(())
}
