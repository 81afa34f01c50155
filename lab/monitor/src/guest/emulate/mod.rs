//! Instructions that the monitor emulates.

use super::cpu::{Cpu, Mode, rflags};
use super::event::{Event, SoftwareKind};
use super::exception::{Exception, GuestError, Unsupported, vector};
use super::lookahead::{Emulation, Instruction};
use super::memory::GuestMemory;

mod debug_status;
mod flags;
mod iret;
mod operand;
mod ptwrite;
mod stack;
mod stack_segment;
mod string_port;
mod syscall;
mod sysenter;

pub use ptwrite::{PtwriteOperand, ptwrite_operand};
pub use string_port::StringPort;

/// The result of an emulated instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionOutcome {
    /// The instruction retired; `Cpu::rip` is the next instruction.
    Retired {
        /// The guest steps itself, and its single-step trap is due now.
        single_step: bool,
    },
    /// HLT retired: nothing executes before an interrupt.
    Halted {
        /// The guest steps itself, and its single-step trap is due now. The trap also ends the halt.
        single_step: bool,
    },
    /// The instruction raises this event, to be [delivered](super::deliver()). The processor's state is unchanged.
    Deliver(Event),
}

/// Executes `instruction`, which [`Lookahead`](super::Lookahead) found at CS:RIP.
///
/// Errors: the fault that the manual's pseudo-code names, or something that is not emulated. `cpu` and memory are
/// unchanged then, except that an IRET ends the blocking of NMIs even if it faults.
///
/// Source: SDM vol. 2, "IRET/IRETD/IRETQ", "INT n/INTO/INT3/INT1", "PUSHF/PUSHFD/PUSHFQ", "POPF/POPFD/POPFQ",
/// "SYSCALL", "SYSRET", "SYSENTER", "SYSEXIT", "STI", "CLI", "MOV", "POP", "LDS/LES/LFS/LGS/LSS", "PAUSE", "HLT".
/// Single-step traps: SDM vol. 3, Debug, Branch Profile, TSC, "Single-Step Exception Condition".
pub fn execute<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    instruction: &Instruction,
) -> Result<ExecutionOutcome, GuestError> {
    let Some(emulation) = instruction.emulation() else {
        return Err(Unsupported::Instruction { rip: cpu.rip }.into());
    };
    let mode = cpu.mode();
    if mode == Mode::Virtual8086 {
        return Err(Unsupported::Virtual8086 { rip: cpu.rip }.into());
    }
    if let Some(event) = software_interrupt(cpu, emulation, instruction.len()) {
        return Ok(ExecutionOutcome::Deliver(event));
    }

    let mut after = *cpu;
    let stepped = move_past(&mut after, instruction.len());
    let done = match emulation {
        Emulation::Pushf(size) => flags::pushf(&mut after, memory, size),
        Emulation::Popf(size) => flags::popf(&mut after, memory, size),
        Emulation::Sti => flags::sti(&mut after),
        Emulation::Cli => flags::cli(&mut after),
        Emulation::Iret(size) => iret::iret(&mut after, memory, size),
        Emulation::Syscall => syscall::syscall(&mut after),
        Emulation::Sysret(size) => syscall::sysret(&mut after, size),
        Emulation::Sysenter => sysenter::sysenter(&mut after),
        Emulation::Sysexit(size) => sysenter::sysexit(&mut after, size),
        Emulation::MovSs => stack_segment::mov_ss(&mut after, memory, instruction),
        Emulation::PopSs(size) => stack_segment::pop_ss(&mut after, memory, size),
        Emulation::Lss => stack_segment::lss(&mut after, memory, instruction),
        Emulation::MovFromDr6 => debug_status::mov_from(&mut after, instruction),
        Emulation::MovToDr6 => debug_status::mov_to(&mut after, instruction),
        Emulation::Hlt if cpu.cpl != 0 => Err(Exception::general_protection(0).into()),
        // INTO without an overflow does nothing; the other software interrupts have been returned as events above.
        Emulation::Int(_) | Emulation::Int3 | Emulation::Int1 | Emulation::Into => Ok(()),
        Emulation::Hlt | Emulation::Pause => Ok(()),
    };
    if matches!(emulation, Emulation::Iret(_)) && !matches!(done, Err(GuestError::Unsupported(_))) {
        cpu.nmi_blocked = false;
        after.nmi_blocked = false;
    }
    done?;

    if emulation == Emulation::MovSs || matches!(emulation, Emulation::PopSs(_)) {
        // The second of two such instructions in a row opens no shadow, so that a guest cannot hold off interrupts with
        // them forever.
        after.shadow = if cpu.shadow.is_none() { instruction.shadow() } else { None };
    } else if emulation == Emulation::Sti {
        after.shadow = instruction.shadow();
    }
    let single_step = match emulation {
        // For these two the new value of TF applies, so that FMASK can keep the trap out of the kernel, and the trap
        // after SYSRET looks like the trap of the SYSCALL before it.
        Emulation::Syscall | Emulation::Sysret(_) => after.rflags & rflags::TF != 0,
        // The trap is delayed until the next instruction has executed, which traps by itself.
        Emulation::MovSs | Emulation::PopSs(_) if after.shadow.is_some() => false,
        _ => stepped,
    };
    *cpu = after;
    Ok(match emulation {
        Emulation::Hlt => ExecutionOutcome::Halted { single_step },
        _ => ExecutionOutcome::Retired { single_step },
    })
}

/// Retires `instruction`, whose effect the monitor has produced itself (CPUID, RDMSR, WRMSR, PTWRITE and others that
/// exit): advances RIP past the instruction, and clears the interrupt shadow and RF.
pub fn retire(cpu: &mut Cpu, instruction: &Instruction) -> ExecutionOutcome {
    ExecutionOutcome::Retired { single_step: move_past(cpu, instruction.len()) }
}

/// Advances RIP past an instruction of `length` bytes. Returns whether the guest steps itself.
fn move_past(cpu: &mut Cpu, length: u8) -> bool {
    cpu.rip = cpu.rip_after(length);
    cpu.rflags &= !rflags::RF;
    cpu.shadow = None;
    cpu.owns_single_step()
}

fn software_interrupt(cpu: &Cpu, emulation: Emulation, length: u8) -> Option<Event> {
    let (vector, kind) = match emulation {
        Emulation::Int(vector) => (vector, SoftwareKind::Int),
        Emulation::Int3 => (vector::BREAKPOINT, SoftwareKind::Int3),
        Emulation::Int1 => (vector::DEBUG, SoftwareKind::Int1),
        Emulation::Into if cpu.rflags & rflags::OF != 0 => (vector::OVERFLOW, SoftwareKind::Into),
        _ => return None,
    };
    Some(Event::Software { vector, kind, length })
}

#[cfg(test)]
mod tests;
