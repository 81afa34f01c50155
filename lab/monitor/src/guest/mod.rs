//! The parts of the guest's processor that a stepping monitor must emulate.
//!
//! The monitor steps the guest by keeping RFLAGS.TF set. Therefore the monitor emulates everything that would reveal
//! the flag, lose it or clear it. Events are [delivered](deliver()) through the guest's own IDT and TSS. The
//! instructions that read or write RFLAGS, change the privilege level or open an interrupt shadow are
//! [executed](execute) on the values of [`Cpu`]. [`Lookahead`] finds the next instruction before each step.
//!
//! Nothing here touches hardware; it runs in host tests. The monitor executes one step as follows:
//!
//! 1. `lookahead.next(&cpu, &mut memory)`: an `Err(GuestError::Exception(e))` is a fault of the fetch; deliver it.
//! 2. If `instruction.emulation()` is `Some(e)` and `e.when_stepping()` holds: call [`execute`], without `VMRUN`.
//!    [`ExecutionOutcome::Retired`] counts as a retired instruction; if its `single_step` is set, the guest's own `#DB`
//!    is due: deliver [`Exception::single_step`]. [`ExecutionOutcome::Deliver`] is an INT n, INT3, INTO or INT1:
//!    deliver the event.
//!    `Err(GuestError::Exception(e))`: deliver it; nothing has retired and `cpu` is unchanged.
//! 3. Otherwise run the guest with [`Cpu::rflags_for_stepping`] and DR6 in its reset state. At the exit set the flags
//!    with [`Cpu::set_rflags_from_hardware`], and leave [`Cpu::dr6`] unchanged: the monitor also emulates MOV to and
//!    from DR6. A `#DB` belongs to the monitor's TF alone if [`Cpu::owns_single_step`] is false. If
//!    [`Lookahead::stretch`] finds several instructions that execute in sequence, a breakpoint after the last one
//!    replaces TF ([`EntryMode::Stretch`](crate::entry::EntryMode::Stretch)), and RIP tells how many executed.
//! 4. [`deliver()`] returns the event whose handler now starts (a fault during the delivery replaces the event), or a
//!    shutdown.
//!
//! Not modelled, because TCG (QEMU's emulator) lacks it or no kernel uses it below a monitor: shadow stacks, protection
//! keys, task switches and virtual-8086 mode. The last two are refused with [`Unsupported`].

mod cpu;
mod deliver;
mod descriptor;
mod emulate;
mod event;
mod exception;
mod init;
mod linear;
mod lookahead;
mod memory;
mod paging;
#[cfg(test)]
mod testing;

pub use cpu::{Cpu, DescriptorTableRegister, Gpr, Mode, Segment, Shadow, cr0, cr4, efer, rflags};
pub use deliver::{DeliveryOutcome, deliver};
pub use emulate::{ExecutionOutcome, PtwriteOperand, StringPort, execute, ptwrite_operand, retire};
pub use event::{Event, SoftwareKind};
pub use exception::{Exception, ExceptionKind, GuestError, Unsupported, vector};
pub use linear::{read_linear, write_linear};
pub use lookahead::{Emulation, Instruction, Lookahead, Size, Stretch, StretchLimits};
pub use memory::GuestMemory;
pub use paging::{Access, AccessKind, Mapped, Privilege, Tlb, translate, walk};
