//! The checks of a handler's code segment, in protected and in long mode.

use super::frame::EventFrame;
use crate::guest::cpu::{Cpu, Segment};
use crate::guest::descriptor::{Descriptor, error_code, is_null};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::memory::GuestMemory;

/// Returns the handler's code segment and its privilege level; `is_usable` checks the mode's further conditions.
pub(super) fn handler_segment<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    frame: &EventFrame,
    selector: u16,
    is_usable: fn(&Segment) -> bool,
) -> Result<(Descriptor, u8), GuestError> {
    if is_null(selector) {
        return Err(Exception::general_protection(frame.ext).into());
    }
    let code = error_code(selector) | frame.ext;
    let refused = Exception::general_protection(code);
    let descriptor = Descriptor::find(cpu, memory, selector)?.ok_or(refused)?;
    let segment = descriptor.segment;
    if !descriptor.is_code() || segment.dpl() > cpu.cpl {
        return Err(refused.into());
    }
    if !is_usable(&segment) {
        return Err(refused.into());
    }
    if !descriptor.is_present() {
        return Err(Exception::segment_not_present(code).into());
    }
    Ok((descriptor, if descriptor.is_conforming() { cpu.cpl } else { segment.dpl() }))
}
