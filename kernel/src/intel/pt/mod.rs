//! Intel Processor Trace on one logical processor.
//!
//! While PT is on, the processor writes packets to memory that describe the control flow: taken and not-taken branches
//! (TNT), targets (TIP), timing and events. From the packets and the code a decoder reconstructs the execution. This
//! module reads the unit's capabilities ([`PtCapabilities`]), checks the configuration ([`PtConfig`]), allocates the
//! output memory ([`Buffer`]), and starts ([`PtUnit`]), runs ([`PtRunning`]) and stops ([`PtStopped`]) a trace.
//!
//! ```
//! use pugmark_kernel::intel::pt::{PtCapabilities, PtConfig};
//!
//! // The kernel's code, with time, as far as this processor can.
//! let config = PtConfig::new().os(true).user(false).tsc(true).mtc(3);
//! match PtCapabilities::of_this_processor() {
//!     Ok(capabilities) => println!("{:?}", config.check(&capabilities)),
//!     Err(missing) => println!("{missing}"),
//! }
//! ```

pub(crate) mod buffer;
mod capabilities;
mod chunks;
pub(crate) mod config;
mod decoder;
mod detect;
mod error;
mod feature;
mod gaps;
mod guest;
mod ring;
mod running;
mod session;
mod shape;
mod stopped;
mod stretch;
mod task;
pub(crate) mod topa;
mod tracer;
mod unit;
mod xsave;

pub use buffer::{Buffer, BufferError, Layout, Mode};
pub use capabilities::{PtCapabilities, Triggers, TscRatio};
pub use chunks::Chunks;
pub use config::{PtConfig, PtConfigRefusal};
pub use decoder::PtDecoder;
pub use detect::VmxTracing;
pub use error::OperationalError;
pub(crate) use feature::CpuidRegister;
pub use feature::{CpuidField, Feature};
pub use running::{PtRunning, PtState};
pub use session::PtSession;
pub use stopped::{PtStopped, Trace};
pub use stretch::{Stretch, Stretches};
pub use task::{NotSwitched, PtTask};
pub use topa::{RegionSize, TopaError};
pub use tracer::PtTracer;
pub use unit::{LeftOn, PtRefusal, PtUnit};
pub use xsave::{NoPtState, PtStateArea, PtStateInstructions, XsavedMsr};

use crate::msr::{GeneralProtection, Msr, clear_trace_en};

/// Stops this processor's unit, whatever code started it: for a kernel that panics and wants to keep the trace.
///
/// This function does nothing else, so that it works in any state of the driver. The [`PtRunning`] can still be drained
/// afterwards, if it can be reached.
///
/// # Errors
///
/// The processor has no PT unit, or the unit cannot be stopped.
pub fn emergency_stop(msr: &mut impl Msr) -> Result<(), GeneralProtection> {
    clear_trace_en(msr).map(|_| ())
}
