//! The short way: one function traced into memory ([`snapshot`]), or a processor's trace that is decoded while it is
//! recorded ([`Live`]), with the memory ([`FramePool`]) and the code ([`kernel_code`]) of a kernel as most are.
//!
//! This module is written with the public items of this crate alone. It hides none of them: a kernel that needs more
//! takes its source as an example.
//!
//! ```no_run
//! use pugmark_kernel::arch::PlainMsr;
//! use pugmark_kernel::intel::pt::PtConfig;
//! use pugmark_kernel::short::{FramePool, ShortError, kernel_code, snapshot};
//! use x86_64::structures::paging::{FrameAllocator, Size4KiB};
//! # fn work() {}
//! # static __executable_start: u8 = 0;
//! # static etext: u8 = 0;
//!
//! /// Prints the functions that `work` calls. All physical memory is mapped at `offset`.
//! fn trace(frames: &mut impl FrameAllocator<Size4KiB>, offset: u64) -> Result<(), ShortError> {
//!     // SAFETY: the boot loader has mapped all RAM there, write-back.
//!     let memory = unsafe { FramePool::new(frames, offset, 64 << 10) };
//!     // SAFETY: the linker puts the kernel's code between these symbols.
//!     let code = [unsafe { kernel_code(&raw const __executable_start, &raw const etext) }];
//!     // SAFETY: the kernel runs at CPL 0, and no thread moves to another processor.
//!     let msr = unsafe { PlainMsr::new() };
//!     let trace = snapshot(msr, &memory, 64 << 10, &PtConfig::new().os(true), work)?;
//!     println!("lost: {}", trace.loss());
//!     let mut scratch = [0; 64 << 10];
//!     for step in trace.calls(&code, &mut scratch)? {
//!         let step = step?;
//!         println!("{:1$}{2:#x}", "", step.depth as usize, step.to);
//!     }
//!     Ok(())
//! }
//! ```

mod error;
mod frame_pool;
mod live;
mod snapshot;

pub use error::ShortError;
pub use frame_pool::FramePool;
pub use live::{Ended, Live, LiveSlot, LiveTracer};
pub use snapshot::{CallSteps, Snapshot, snapshot, snapshot_of};

use pugmark_decoder_core::image::{AddressSpace, Section};

/// Returns the code between two addresses, such as those of linker symbols: `__executable_start` and `etext` of
/// LLD and GNU ld, or the beginning and the end of the section `.text` in a linker script.
///
/// # Safety
///
/// The memory from `start` to `end` must be mapped and readable, and its bytes must never change.
#[must_use]
pub unsafe fn kernel_code(start: *const u8, end: *const u8) -> Section<'static> {
    let len = end.addr().saturating_sub(start.addr());
    // SAFETY: the caller promises that this memory is readable and never changes.
    let bytes = unsafe { core::slice::from_raw_parts(start, len) };
    Section { base: start.addr() as u64, bytes, space: AddressSpace::Any }
}
