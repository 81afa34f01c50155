//! The debug store (DS): the processor writes branch records (BTS) and samples (PEBS) into a DS save area in memory.
//!
//! One area serves both halves, [`bts`](crate::intel::bts) and [`pebs`](crate::intel::pebs), so they have one owner:
//! [`DsUnit`] is off, [`DsRunning`] records and owns the memory, [`DsStopped`] holds the records. The area begins with
//! the buffer management area, which gives base, index, maximum and PMI threshold of each half's buffer.
//!
//! ```
//! use pugmark_kernel::intel::ds::{AreaError, AreaPlan, BufferMode, BufferPlan};
//! use pugmark_kernel::intel::ds::{DsArea, DsCapabilities, LinearMemory, Strictness};
//!
//! /// Memory for the last thousand branches.
//! fn area<L: LinearMemory + Clone>(memory: L, capabilities: &DsCapabilities) -> Result<DsArea<L>, AreaError> {
//!     let buffer = BufferPlan { bytes: 24 * 1000, page_offset: 0, mode: BufferMode::Circular };
//!     DsArea::allocate(memory, capabilities, &AreaPlan::new().bts(buffer), Strictness::Lenient)
//! }
//! ```

mod area;
mod block;
mod buffer;
mod config;
mod detect;
mod layout;
mod memory;
mod messages;
mod plan;
mod progress;
mod rules;
mod running;
mod session;
mod stopped;
#[cfg(test)]
mod tests;
mod unit;

pub use area::{AreaError, DsArea};
pub use buffer::BadIndex;
pub use config::{DsConfig, DsRefusal, Gate};
pub use detect::DsCapabilities;
pub use layout::{DsLayout, Half};
pub use memory::{LinearMemory, LinearPage, LinearRequest, MemoryType, PageTableFlags, PhysAddr, VirtAddr};
pub use messages::{MessageSession, Messages};
pub use plan::{AreaPlan, BufferMode, BufferPlan, PlanError};
pub use progress::DsState;
pub use rules::{Place, Rule, Strictness, Warning, Warnings};
pub use running::DsRunning;
pub use session::DsSession;
pub use stopped::{DsStopped, Records};
pub use unit::{DsLeftOn, DsUnit};

use crate::msr::{DebugCtl, DebugFlags, GeneralProtection, Msr, PebsEnable, TypedMsr};

/// Stops the branch trace store and the sampling of this processor, whatever code started them: for a kernel that
/// panics and wants to keep the records.
///
/// # Errors
///
/// A register does not exist.
pub fn emergency_stop(msr: &mut impl Msr, capabilities: &DsCapabilities) -> Result<(), GeneralProtection> {
    let DebugCtl(bits) = msr.read()?;
    let store = DebugFlags::TR.union(DebugFlags::BTS).union(DebugFlags::BTINT);
    let on = capabilities.control.bits(store);
    if bits & on != 0 {
        // SAFETY: this only ends writes to memory.
        unsafe { msr.write(DebugCtl(bits & !on)) }?;
    }
    match capabilities.pebs {
        // SAFETY: as above.
        Ok(_) => unsafe { msr.write(PebsEnable(0)) },
        Err(_) => Ok(()),
    }
}
