//! Delivery in long mode: 16-byte gates; stacks from IST or RSP0 to RSP2 of the TSS; a frame of quadwords.

use super::frame::EventFrame;
use super::handler_segment::handler_segment;
use crate::guest::cpu::{Cpu, Gpr, Segment};
use crate::guest::descriptor::{error_code, null_stack_segment};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::linear::{read_array, write_linear};
use crate::guest::memory::GuestMemory;
use crate::guest::paging::{Access, AccessKind, Privilege};

const INTERRUPT_GATE: u64 = 14;
const TRAP_GATE: u64 = 15;

pub(super) fn enter<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    frame: &EventFrame,
) -> Result<(), GuestError> {
    let gate = LongModeGate::read(cpu, memory, frame)?;
    let is_64_bit = |segment: &Segment| segment.has(Segment::L) && !segment.has(Segment::DB);
    let (code, cpl) = handler_segment(cpu, memory, frame, gate.selector, is_64_bit)?;
    let inner = cpl < cpu.cpl;

    let top = if gate.ist != 0 {
        stack_from_tss(cpu, memory, frame, 28 + 8 * u64::from(gate.ist))?
    } else if inner {
        stack_from_tss(cpu, memory, frame, 4 + 8 * u64::from(cpl))?
    } else {
        cpu.get(Gpr::Rsp)
    };
    let pushed = [
        u64::from(cpu.ss.selector),
        cpu.get(Gpr::Rsp),
        frame.rflags,
        u64::from(cpu.cs.selector),
        frame.return_rip,
        u64::from(frame.error_code.unwrap_or(0)),
    ];
    let count = if frame.error_code.is_some() { 6 } else { 5 };
    let len = 8 * count as u64;
    let rsp = (top & !0xf).wrapping_sub(len);
    if !cpu.is_canonical(rsp) || !cpu.is_canonical(rsp.wrapping_add(len - 1)) {
        return Err(Exception::stack_fault(frame.ext).into());
    }
    if !cpu.is_canonical(gate.offset) {
        return Err(Exception::general_protection(frame.ext).into());
    }

    let cs = code.load(cpu, memory, gate.selector & !3 | u16::from(cpl))?;
    let mut bytes = [0; 48];
    for (slot, value) in bytes[..8 * count].rchunks_exact_mut(8).zip(pushed) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
    let access = Access { kind: AccessKind::Write, privilege: stack_privilege(cpu, cpl) };
    write_linear(cpu, memory, rsp, &bytes[..8 * count], access)?;

    if inner {
        cpu.ss = null_stack_segment(u16::from(cpl), cpl);
    }
    cpu.cs = cs;
    cpu.cpl = cpl;
    cpu.rip = gate.offset;
    cpu.set(Gpr::Rsp, rsp);
    cpu.rflags = frame.handler_rflags(gate.kind == INTERRUPT_GATE);
    Ok(())
}

struct LongModeGate {
    selector: u16,
    offset: u64,
    ist: u8,
    kind: u64,
}

impl LongModeGate {
    fn read<M: GuestMemory + ?Sized>(
        cpu: &Cpu,
        memory: &mut M,
        frame: &EventFrame,
    ) -> Result<Self, GuestError> {
        let index = u64::from(frame.vector) * 16;
        if index + 15 > u64::from(cpu.idtr.limit) {
            return Err(Exception::general_protection(frame.gate_error()).into());
        }
        let access = Access::implicit(AccessKind::Read);
        let bytes = read_array(cpu, memory, cpu.idtr.base.wrapping_add(index), access)?;
        let raw = u128::from_le_bytes(bytes);
        let (low, high) = (raw as u64, (raw >> 64) as u64);
        let kind = low >> 40 & 0x1f;
        if kind != INTERRUPT_GATE && kind != TRAP_GATE {
            return Err(Exception::general_protection(frame.gate_error()).into());
        }
        if frame.checks_dpl && ((low >> 45 & 3) as u8) < cpu.cpl {
            return Err(Exception::general_protection(frame.gate_error()).into());
        }
        if low >> 47 & 1 == 0 {
            return Err(Exception::segment_not_present(frame.gate_error()).into());
        }
        Ok(Self {
            selector: (low >> 16) as u16,
            offset: low & 0xffff | low >> 32 & 0xffff_0000 | high << 32,
            ist: (low >> 32 & 7) as u8,
            kind,
        })
    }
}

fn stack_from_tss<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    frame: &EventFrame,
    offset: u64,
) -> Result<u64, GuestError> {
    if offset + 7 > u64::from(cpu.tr.limit) {
        return Err(Exception::invalid_tss(error_code(cpu.tr.selector) | frame.ext).into());
    }
    let access = Access::implicit(AccessKind::Read);
    Ok(u64::from_le_bytes(read_array(cpu, memory, cpu.tr.base.wrapping_add(offset), access)?))
}

/// Returns the privilege of the pushes: they are made at the new level, but RFLAGS.AC of user code must not suspend
/// SMAP for them.
pub(super) fn stack_privilege(cpu: &Cpu, new_cpl: u8) -> Privilege {
    match (cpu.cpl, new_cpl) {
        (_, 3) => Privilege::User,
        (3, _) => Privilege::Implicit,
        _ => Privilege::Supervisor,
    }
}
