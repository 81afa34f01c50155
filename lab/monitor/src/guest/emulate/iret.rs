//! IRET in every mode except virtual-8086 mode.

use super::{flags, stack};
use crate::guest::cpu::{Cpu, Mode, Segment, rflags};
use crate::guest::descriptor::{Descriptor, error_code, is_null, null_stack_segment};
use crate::guest::exception::{Exception, GuestError, Unsupported};
use crate::guest::linear::within_limit;
use crate::guest::lookahead::Size;
use crate::guest::memory::GuestMemory;

/// Executes IRET. RIP in `cpu` is already past the instruction.
pub(super) fn iret<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    size: Size,
) -> Result<(), GuestError> {
    match cpu.mode() {
        Mode::Real => real(cpu, memory, size),
        Mode::Virtual8086 => Err(Unsupported::Virtual8086 { rip: cpu.rip }.into()),
        mode => protected(cpu, memory, size, mode),
    }
}

fn real<M: GuestMemory + ?Sized>(cpu: &mut Cpu, memory: &mut M, size: Size) -> Result<(), GuestError> {
    let [ip, cs, image] = stack::peek::<3, M>(cpu, memory, size, 0)?;
    if !within_limit(&cpu.cs, ip, 1) {
        return Err(Exception::general_protection(0).into());
    }
    stack::drop_elements(cpu, size, 3);
    cpu.cs.selector = cs as u16;
    cpu.cs.base = u64::from(cs as u16) << 4;
    cpu.rip = ip;
    flags::load(cpu, image, writable_flags(size));
    Ok(())
}

fn protected<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    size: Size,
    mode: Mode,
) -> Result<(), GuestError> {
    if cpu.rflags & rflags::NT != 0 {
        return Err(match mode {
            Mode::Protected => Unsupported::TaskReturn { rip: cpu.rip }.into(),
            _ => Exception::general_protection(0).into(),
        });
    }
    // 64-bit mode always pops RSP and SS; the other modes pop them only on a change of the privilege level.
    let ([rip, cs, image], always) = if mode == Mode::Bits64 {
        let [rip, cs, image, rsp, ss] = stack::peek::<5, M>(cpu, memory, size, 0)?;
        ([rip, cs, image], Some([rsp, ss]))
    } else {
        (stack::peek::<3, M>(cpu, memory, size, 0)?, None)
    };
    if mode == Mode::Protected && size == Size::Dword && image & rflags::VM != 0 && cpu.cpl == 0 {
        return Err(Unsupported::Virtual8086 { rip: cpu.rip }.into());
    }
    let cs = cs as u16;
    let code = code_segment(cpu, memory, cs)?;
    let cpl = (cs & 3) as u8;
    let outer = cpl > cpu.cpl;
    let to_64 = cpu.is_long_mode() && code.segment.has(Segment::L);

    let pointer = match always {
        None if outer => Some(stack::peek::<2, M>(cpu, memory, size, 3)?),
        always => always,
    };
    let stack = match pointer {
        Some([rsp, ss]) => Some((rsp, ss as u16, stack_segment(cpu, memory, ss as u16, cpl, to_64)?)),
        None => None,
    };
    let in_range = if to_64 { cpu.is_canonical(rip) } else { within_limit(&code.segment, rip, 1) };
    if !in_range {
        return Err(Exception::general_protection(0).into());
    }

    let new_ss = match stack {
        Some((_, selector, Some(descriptor))) => Some(descriptor.load(cpu, memory, selector)?),
        Some((_, selector, None)) => Some(null_stack_segment(selector, cpl)),
        None => None,
    };
    let new_cs = code.load(cpu, memory, cs)?;
    // The current privilege level, before the return, decides which flags may change.
    flags::load(cpu, image, writable_flags(size) | virtual_interrupt_flags(cpu, size));
    if stack.is_none() {
        stack::drop_elements(cpu, size, 3);
    }
    cpu.cs = new_cs;
    cpu.cpl = cpl;
    cpu.rip = rip;
    if let (Some((rsp, ..)), Some(ss)) = (stack, new_ss) {
        cpu.ss = ss;
        stack::set_pointer(cpu, rsp);
    }
    if outer {
        for segment in [&mut cpu.es, &mut cpu.ds, &mut cpu.fs, &mut cpu.gs] {
            forget_inner(segment, cpl);
        }
    }
    Ok(())
}

fn code_segment<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    selector: u16,
) -> Result<Descriptor, GuestError> {
    if is_null(selector) {
        return Err(Exception::general_protection(0).into());
    }
    let refused = Exception::general_protection(error_code(selector));
    let code = Descriptor::find(cpu, memory, selector)?.ok_or(refused)?;
    let rpl = (selector & 3) as u8;
    let dpl = code.segment.dpl();
    let level_fits = if code.is_conforming() { dpl <= rpl } else { dpl == rpl };
    if !code.is_code() || rpl < cpu.cpl || !level_fits {
        return Err(refused.into());
    }
    if cpu.is_long_mode() && code.segment.has(Segment::L | Segment::DB) {
        return Err(refused.into());
    }
    if !code.is_present() {
        return Err(Exception::segment_not_present(error_code(selector)).into());
    }
    Ok(code)
}

/// Returns the stack segment for privilege level `cpl`; `None` is the null segment that 64-bit code below CPL 3 may
/// have.
fn stack_segment<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    selector: u16,
    cpl: u8,
    to_64: bool,
) -> Result<Option<Descriptor>, GuestError> {
    let rpl = (selector & 3) as u8;
    if is_null(selector) {
        return if to_64 && cpl != 3 && rpl == cpl {
            Ok(None)
        } else {
            Err(Exception::general_protection(0).into())
        };
    }
    let refused = Exception::general_protection(error_code(selector));
    let descriptor = Descriptor::find(cpu, memory, selector)?.ok_or(refused)?;
    if rpl != cpl || descriptor.segment.dpl() != cpl || !descriptor.is_writable_data() {
        return Err(refused.into());
    }
    if !descriptor.is_present() {
        return Err(Exception::stack_fault(error_code(selector)).into());
    }
    Ok(Some(descriptor))
}

fn writable_flags(size: Size) -> u64 {
    let low = rflags::STATUS_AND_DF | rflags::TF | rflags::NT;
    if size == Size::Word { low } else { low | rflags::RF | rflags::AC | rflags::ID }
}

fn virtual_interrupt_flags(cpu: &Cpu, size: Size) -> u64 {
    if cpu.cpl == 0 && size != Size::Word { rflags::VIF | rflags::VIP } else { 0 }
}

/// Clears a data or non-conforming code segment of an inner level, which must not remain usable at an outer level.
fn forget_inner(segment: &mut Segment, cpl: u8) {
    let conforming_code = segment.has(Segment::CODE | Segment::CONFORMING);
    if segment.has(Segment::P) && !conforming_code && segment.dpl() < cpl {
        segment.selector = 0;
        segment.attributes &= !Segment::P;
    }
}
