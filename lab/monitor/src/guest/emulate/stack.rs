//! The stack of the current instruction.

use crate::guest::cpu::{Cpu, Gpr, Mode, Segment};
use crate::guest::exception::GuestError;
use crate::guest::linear::{SegmentName, read_linear, segment_address, write_linear};
use crate::guest::lookahead::Size;
use crate::guest::memory::GuestMemory;
use crate::guest::paging::{Access, AccessKind};

/// Reads `N` elements from the stack after skipping `skip` elements. The stack pointer is not changed.
///
/// Errors: `#SS(0)` if the elements are not all within the stack, or a page fault.
pub(super) fn peek<const N: usize, M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    size: Size,
    skip: u64,
) -> Result<[u64; N], GuestError> {
    let step = size.bytes();
    let len = step * N;
    let offset = cpu.get(Gpr::Rsp).wrapping_add(skip * step as u64) & mask(cpu);
    let linear = segment_address(cpu, SegmentName::Ss, offset, len as u64, AccessKind::Read)?;
    let mut bytes = [0; 8 * 8];
    read_linear(cpu, memory, linear, &mut bytes[..len], Access::at_cpl(cpu, AccessKind::Read))?;
    let mut elements = [0; N];
    for (element, slot) in elements.iter_mut().zip(bytes.chunks_exact(step)) {
        let mut value = [0; 8];
        value[..step].copy_from_slice(slot);
        *element = u64::from_le_bytes(value);
    }
    Ok(elements)
}

/// Increments the stack pointer past `count` elements.
pub(super) fn drop_elements(cpu: &mut Cpu, size: Size, count: u64) {
    let pointer = cpu.get(Gpr::Rsp).wrapping_add(count * size.bytes() as u64);
    set_pointer(cpu, pointer);
}

/// Pushes one element.
///
/// Errors: `#SS(0)` if the element is not within the stack, or a page fault; nothing is written then.
pub(super) fn push<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    size: Size,
    value: u64,
) -> Result<(), GuestError> {
    let step = size.bytes();
    let offset = cpu.get(Gpr::Rsp).wrapping_sub(step as u64) & mask(cpu);
    let linear = segment_address(cpu, SegmentName::Ss, offset, step as u64, AccessKind::Write)?;
    let access = Access::at_cpl(cpu, AccessKind::Write);
    write_linear(cpu, memory, linear, &value.to_le_bytes()[..step], access)?;
    set_pointer(cpu, offset);
    Ok(())
}

/// Sets RSP, ESP or SP, as SS selects. Bits above ESP are cleared outside 64-bit mode; bits above SP are kept.
pub(super) fn set_pointer(cpu: &mut Cpu, value: u64) {
    let mask = mask(cpu);
    let kept = cpu.get(Gpr::Rsp) & !mask & 0xffff_ffff;
    cpu.set(Gpr::Rsp, kept | value & mask);
}

fn mask(cpu: &Cpu) -> u64 {
    if cpu.mode() == Mode::Bits64 {
        u64::MAX
    } else if cpu.ss.has(Segment::DB) {
        0xffff_ffff
    } else {
        0xffff
    }
}
