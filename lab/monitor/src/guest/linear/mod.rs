//! Access to ranges of linear memory, and the checks of segmentation.

use super::cpu::{Cpu, Mode, Segment};
use super::exception::Exception;
use super::memory::GuestMemory;
use super::paging::{Access, AccessKind, translate};

/// Reads the bytes at `linear`, across page boundaries. A page without memory reads as all ones.
///
/// Errors: the page fault of the first page that faults.
pub fn read_linear<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    linear: u64,
    out: &mut [u8],
    access: Access,
) -> Result<(), Exception> {
    for piece in pieces(linear, out.len()) {
        let address = translate(cpu, memory, piece.linear, access)?;
        memory.load(address, &mut out[piece.offset..piece.offset + piece.len]);
    }
    Ok(())
}

/// Reads an array of bytes at `linear`.
///
/// Errors: as [`read_linear`].
pub(super) fn read_array<const BYTES: usize, M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    linear: u64,
    access: Access,
) -> Result<[u8; BYTES], Exception> {
    let mut bytes = [0; BYTES];
    read_linear(cpu, memory, linear, &mut bytes, access)?;
    Ok(bytes)
}

/// Writes `bytes` at `linear`, across page boundaries. Nothing is written if any page of the range faults. A write to a
/// page without memory is lost.
///
/// Errors: the page fault of the first page that faults.
pub fn write_linear<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    linear: u64,
    bytes: &[u8],
    access: Access,
) -> Result<(), Exception> {
    for piece in pieces(linear, bytes.len()) {
        translate(cpu, memory, piece.linear, access)?;
    }
    for piece in pieces(linear, bytes.len()) {
        let address = translate(cpu, memory, piece.linear, access)?;
        memory.store(address, &bytes[piece.offset..piece.offset + piece.len]);
    }
    Ok(())
}

/// The segment register that an effective address is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentName {
    Es,
    Cs,
    Ss,
    Ds,
    Fs,
    Gs,
}

/// Returns the linear address of `len` bytes at `offset` in a segment.
///
/// Errors: `#SS(0)` for SS, else `#GP(0)`, if the address is not canonical or beyond the limit, or if the segment is
/// null or of a type that forbids the access.
///
/// Source: SDM vol. 3, Protection, "Limit Checking", "Type Checking"; Interrupt 12 and 13.
pub(super) fn segment_address(
    cpu: &Cpu,
    name: SegmentName,
    offset: u64,
    len: u64,
    kind: AccessKind,
) -> Result<u64, Exception> {
    let segment = match name {
        SegmentName::Es => &cpu.es,
        SegmentName::Cs => &cpu.cs,
        SegmentName::Ss => &cpu.ss,
        SegmentName::Ds => &cpu.ds,
        SegmentName::Fs => &cpu.fs,
        SegmentName::Gs => &cpu.gs,
    };
    let refused =
        if name == SegmentName::Ss { Exception::stack_fault(0) } else { Exception::general_protection(0) };
    if cpu.mode() == Mode::Bits64 {
        let base = if matches!(name, SegmentName::Fs | SegmentName::Gs) { segment.base } else { 0 };
        let linear = base.wrapping_add(offset);
        let last = linear.wrapping_add(len.saturating_sub(1));
        return if cpu.is_canonical(linear) && cpu.is_canonical(last) { Ok(linear) } else { Err(refused) };
    }
    if matches!(cpu.mode(), Mode::Protected | Mode::Compatibility) && !type_allows(segment, kind) {
        return Err(refused);
    }
    if !within_limit(segment, offset, len) {
        return Err(refused);
    }
    Ok(segment.base.wrapping_add(offset) & 0xffff_ffff)
}

/// Returns whether `len` bytes at `offset` are within the limit; supports expand-down data, too.
pub(super) fn within_limit(segment: &Segment, offset: u64, len: u64) -> bool {
    let last = offset.wrapping_add(len.saturating_sub(1));
    if last < offset {
        return false;
    }
    let limit = u64::from(segment.limit);
    let expand_down = !segment.has(Segment::CODE) && segment.has(Segment::S | Segment::CONFORMING);
    if expand_down {
        let top = if segment.has(Segment::DB) { 0xffff_ffff } else { 0xffff };
        offset > limit && last <= top
    } else {
        last <= limit
    }
}

fn type_allows(segment: &Segment, kind: AccessKind) -> bool {
    if !segment.has(Segment::P | Segment::S) {
        return false;
    }
    let code = segment.has(Segment::CODE);
    let read_write = segment.has(Segment::READ_WRITE);
    match kind {
        AccessKind::Read => !code || read_write,
        AccessKind::Write => !code && read_write,
        AccessKind::Execute => code,
    }
}

struct PagePiece {
    linear: u64,
    offset: usize,
    len: usize,
}

fn pieces(linear: u64, len: usize) -> impl Iterator<Item = PagePiece> {
    let mut offset = 0;
    core::iter::from_fn(move || {
        if offset == len {
            return None;
        }
        let at = linear.wrapping_add(offset as u64);
        let room = 4096 - (at & 0xfff) as usize;
        let piece = PagePiece { linear: at, offset, len: room.min(len - offset) };
        offset += piece.len;
        Some(piece)
    })
}

#[cfg(test)]
mod tests;
