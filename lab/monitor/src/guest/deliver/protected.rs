//! Delivery in protected mode outside long mode: 8-byte gates; SS:ESP from the TSS; a frame of words or doublewords.

use super::frame::EventFrame;
use super::handler_segment::handler_segment;
use super::long::stack_privilege;
use crate::guest::cpu::{Cpu, Gpr, Segment};
use crate::guest::descriptor::{Descriptor, error_code, is_null};
use crate::guest::exception::{Exception, GuestError, Unsupported};
use crate::guest::linear::{read_array, read_linear, within_limit, write_linear};
use crate::guest::memory::GuestMemory;
use crate::guest::paging::{Access, AccessKind};

const TASK_GATE: u64 = 5;
/// Types 6 and 7 are 16-bit gates; with this bit set they are 32-bit gates.
const GATE_32: u64 = 8;
const INTERRUPT_GATE: u64 = 6;
const TRAP_GATE: u64 = 7;

pub(super) fn enter<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    frame: &EventFrame,
) -> Result<(), GuestError> {
    let gate = ProtectedModeGate::read(cpu, memory, frame)?;
    let (code, cpl) = handler_segment(cpu, memory, frame, gate.selector, |_| true)?;
    let inner = cpl < cpu.cpl;
    let (stack, top) =
        if inner { inner_stack(cpu, memory, frame, cpl)? } else { (cpu.ss, cpu.get(Gpr::Rsp)) };

    let mut pushed = [0; 6];
    let mut count = 0;
    let mut push = |value: u64| {
        pushed[count] = value;
        count += 1;
    };
    if inner {
        push(u64::from(cpu.ss.selector));
        push(cpu.get(Gpr::Rsp));
    }
    push(frame.rflags);
    push(u64::from(cpu.cs.selector));
    push(frame.return_rip);
    if let Some(code) = frame.error_code {
        push(u64::from(code));
    }

    let size = if gate.kind & GATE_32 != 0 { 4 } else { 2 };
    let mask = if stack.has(Segment::DB) { 0xffff_ffff } else { 0xffff };
    let len = size * count;
    let offset = top.wrapping_sub(len as u64) & mask;
    if !within_limit(&stack, offset, len as u64) {
        let selector = if inner { error_code(stack.selector) } else { 0 };
        return Err(Exception::stack_fault(selector | frame.ext).into());
    }
    if gate.offset > u64::from(code.segment.limit) {
        return Err(Exception::general_protection(frame.ext).into());
    }

    let cs = code.load(cpu, memory, gate.selector & !3 | u16::from(cpl))?;
    let mut bytes = [0; 24];
    for (slot, value) in bytes[..len].rchunks_exact_mut(size).zip(pushed) {
        slot.copy_from_slice(&value.to_le_bytes()[..size]);
    }
    let access = Access { kind: AccessKind::Write, privilege: stack_privilege(cpu, cpl) };
    let linear = stack.base.wrapping_add(offset) & 0xffff_ffff;
    write_linear(cpu, memory, linear, &bytes[..len], access)?;

    cpu.ss = stack;
    cpu.cs = cs;
    cpu.cpl = cpl;
    cpu.rip = gate.offset;
    cpu.set(Gpr::Rsp, top & !mask & 0xffff_ffff | offset);
    cpu.rflags = frame.handler_rflags(gate.kind & !GATE_32 == INTERRUPT_GATE);
    Ok(())
}

struct ProtectedModeGate {
    selector: u16,
    offset: u64,
    kind: u64,
}

impl ProtectedModeGate {
    fn read<M: GuestMemory + ?Sized>(
        cpu: &Cpu,
        memory: &mut M,
        frame: &EventFrame,
    ) -> Result<Self, GuestError> {
        let index = u64::from(frame.vector) * 8;
        if index + 7 > u64::from(cpu.idtr.limit) {
            return Err(Exception::general_protection(frame.gate_error()).into());
        }
        let access = Access::implicit(AccessKind::Read);
        let raw = u64::from_le_bytes(read_array(cpu, memory, cpu.idtr.base.wrapping_add(index), access)?);
        let kind = raw >> 40 & 0x1f;
        if kind != TASK_GATE && !matches!(kind & !GATE_32, INTERRUPT_GATE | TRAP_GATE) {
            return Err(Exception::general_protection(frame.gate_error()).into());
        }
        if frame.checks_dpl && ((raw >> 45 & 3) as u8) < cpu.cpl {
            return Err(Exception::general_protection(frame.gate_error()).into());
        }
        if raw >> 47 & 1 == 0 {
            return Err(Exception::segment_not_present(frame.gate_error()).into());
        }
        if kind == TASK_GATE {
            return Err(Unsupported::TaskGate { vector: frame.vector }.into());
        }
        let high = if kind & GATE_32 != 0 { raw >> 32 & 0xffff_0000 } else { 0 };
        Ok(Self { selector: (raw >> 16) as u16, offset: raw & 0xffff | high, kind })
    }
}

/// Returns SS:ESP for privilege level `cpl` from the TSS, with the segment of SS loaded.
fn inner_stack<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    frame: &EventFrame,
    cpl: u8,
) -> Result<(Segment, u64), GuestError> {
    // Types 9 and 11 are 32-bit TSSs; types 1 and 3 are 16-bit TSSs.
    let wide = cpu.tr.has(Segment::CODE);
    let (offset, size) = if wide { (4 + 8 * u64::from(cpl), 4) } else { (2 + 4 * u64::from(cpl), 2) };
    if offset + size as u64 + 1 > u64::from(cpu.tr.limit) {
        return Err(Exception::invalid_tss(error_code(cpu.tr.selector) | frame.ext).into());
    }
    let mut bytes = [0; 6];
    let access = Access::implicit(AccessKind::Read);
    read_linear(cpu, memory, cpu.tr.base.wrapping_add(offset), &mut bytes[..size + 2], access)?;
    let mut pointer = [0; 8];
    pointer[..size].copy_from_slice(&bytes[..size]);
    let selector = u16::from_le_bytes([bytes[size], bytes[size + 1]]);

    if is_null(selector) {
        return Err(Exception::invalid_tss(frame.ext).into());
    }
    let code = error_code(selector) | frame.ext;
    let refused = Exception::invalid_tss(code);
    let descriptor = Descriptor::find(cpu, memory, selector)?.ok_or(refused)?;
    if (selector & 3) as u8 != cpl || descriptor.segment.dpl() != cpl || !descriptor.is_writable_data() {
        return Err(refused.into());
    }
    if !descriptor.is_present() {
        return Err(Exception::stack_fault(code).into());
    }
    Ok((descriptor.load(cpu, memory, selector)?, u64::from_le_bytes(pointer)))
}
