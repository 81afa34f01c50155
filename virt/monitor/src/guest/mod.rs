//! The guest's processor as far as a stepping monitor must stand in for it.
//!
//! RFLAGS.TF stays set under the guest, so everything that would show the flag, lose it or clear it is done here
//! instead of by the processor: events are [delivered](deliver()) through the guest's own IDT and TSS, and the
//! instructions that read or write RFLAGS, change the level or open an interrupt shadow are [executed](execute)
//! on the values of [`Cpu`]. [`Lookahead`] says before each step which instruction comes next.
//!
//! Nothing here touches hardware; it runs in host tests. One step, seen from the monitor:
//!
//! 1. `lookahead.next(&cpu, &mut memory)`: an `Err(Error::Exception(e))` is a fault of the fetch, to be delivered.
//! 2. `instruction.emulation()` is `Some(e)` and `e.when_stepping()`: call [`execute`], no `VMRUN`.
//!    [`Next::Retired`] counts; with `single_step` set the guest's own `#DB` is due: deliver
//!    [`Exception::single_step`]. [`Next::Deliver`] is an `INT n` and its kin: deliver the event.
//!    `Err(Error::Exception(e))`: deliver it; nothing has retired and `cpu` is as it was.
//! 3. Otherwise run the guest with [`Cpu::rflags_for_stepping`] and DR6 in its reset state; at the exit take the flags
//!    back with [`Cpu::set_rflags_from_hardware`] and leave [`Cpu::dr6`] as it is: software reads and writes it by
//!    hand too. A `#DB` of the monitor's own TF is [`Cpu::owns_single_step`] = false.
//!    Where [`Lookahead::stretch`] finds several instructions that must follow one another, a breakpoint behind the last
//!    of them takes the place of TF ([`Pace::Stretch`](crate::entry::Pace::Stretch)), and RIP tells how many executed.
//! 4. [`deliver()`] answers with the event whose handler now starts (a fault of the delivery replaces the event) or
//!    with a shutdown.
//!
//! Not modelled, because TCG has none of it or no kernel uses it below a monitor: shadow stacks, protection keys,
//! task switches and virtual-8086 mode (the last two are refused with [`Unsupported`]).

mod cpu;
mod deliver;
mod descriptor;
mod emulate;
mod exception;
mod init;
mod linear;
mod lookahead;
mod memory;
mod paging;
#[cfg(test)]
mod testing;

pub use cpu::{Cpu, Gpr, Mode, Segment, Shadow, Table, cr0, cr4, efer, rflags};
pub use deliver::{Event, Outcome, SoftwareKind, deliver};
pub use emulate::{Next, PtwriteOperand, execute, ptwrite_operand, retire};
pub use exception::{Error, Exception, ExceptionKind, Unsupported, vector};
pub use linear::{read_linear, write_linear};
pub use lookahead::{Emulation, Instruction, Lookahead, Size, Stretch};
pub use memory::GuestMemory;
pub use paging::{Access, AccessKind, Mapped, Privilege, Tlb, translate, walk};
