//! Architectural PEBS: samples into a buffer of physical memory, without a DS save area.
//!
//! Each counter says which groups of fields its records have, and is reloaded by the processor. The records are those
//! of [`Format::Architectural`](pugmark_decoder_core::pebs::Format::Architectural).
//!
//! ```
//! use pugmark_kernel::cpuid::this_processor;
//! use pugmark_kernel::drain::Sink;
//! use pugmark_kernel::intel::pebs::architectural::{ArchPebsBuffer, ArchPebsConfig, ArchPebsGroups, ArchPebsUnit};
//! use pugmark_kernel::intel::pebs::PreciseEvent;
//! use pugmark_kernel::{memory::Frames, msr::Msr};
//!
//! /// Samples each 10 000th instruction that a function executes, with the registers.
//! fn sample(msr: impl Msr, frames: impl Frames, work: fn(), sink: &mut impl Sink) -> Result<(), String> {
//!     let unit = ArchPebsUnit::detect(this_processor, msr).map_err(|absent| absent.to_string())?;
//!     let buffer = ArchPebsBuffer::allocate(frames, unit.capabilities(), 64 << 10, 4 << 10)
//!         .map_err(|error| error.to_string())?;
//!     let config = ArchPebsConfig::new()
//!         .general(0, PreciseEvent::INST_RETIRED, 10_000)
//!         .groups(ArchPebsGroups::REGISTERS);
//!     let mut running = unit.start(buffer, &config).map_err(|not_started| not_started.error().to_string())?;
//!     work();
//!     running.drain(sink).map_err(|fault| fault.to_string())?;
//!     running.stop().map_err(|failed| failed.fault.to_string())?;
//!     Ok(())
//! }
//! ```
//!
//! Source: Linux, `arch/x86/events/intel/ds.c` and `core.c` with the series "arch-PEBS enabling for Intel platforms",
//! `arch/x86/include/asm/msr-index.h` and `perf_event.h`; KVM's checks of the reserved bits by Intel's authors. The
//! manual's chapter was not at hand. In doubt: a buffer is aligned to its size, where Linux's comment asks for 4 KiB; a
//! full buffer drops records until it is drained; stopping drops a record that an overflow has requested.

mod buffer;
mod capabilities;
mod config;
mod session;
#[cfg(test)]
mod tests;
mod unit;

pub use buffer::{ArchPebsBuffer, ArchPebsBufferError};
pub use capabilities::ArchPebsCapabilities;
pub use config::{ArchPebsConfig, ArchPebsRefusal};
pub use session::ArchPebsSession;
pub use unit::{ArchPebsRunning, ArchPebsStopped, ArchPebsUnit};

pub use crate::msr::ArchPebsGroups;
