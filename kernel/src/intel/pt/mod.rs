//! Intel Processor Trace on one logical processor: what it can do, what is to be traced, where the trace goes, and the
//! unit, started, running, stopped.

pub(crate) mod buffer;
mod capabilities;
pub(crate) mod config;
mod detect;
mod error;
mod feature;
mod gaps;
mod pieces;
mod ring;
mod running;
mod session;
mod stopped;
pub(crate) mod topa;
mod unit;

pub use buffer::{Buffer, BufferError, Layout, Mode};
pub use capabilities::{PtCapabilities, TscRatio};
pub use config::{Checked, PtConfig, PtConfigRefusal};
pub use detect::{VmxTracing, probe};
pub use error::OperationalError;
pub use feature::{CpuidField, CpuidRegister, Feature};
pub use pieces::Pieces;
pub use running::{PtRunning, PtState};
pub use session::PtSession;
pub use stopped::{PtStopped, Trace};
pub use topa::{Chain, Entry, EntryFlags, Listed, RegionSize, Topa, TopaError, TopaPlan};
pub use unit::{PtRefusal, PtUnit};

use crate::msr::{GeneralProtection, Msr, RtitCtl};

/// Stops the unit of this processor, whoever started it: for a kernel that panics and wants to keep what was traced.
///
/// It does nothing else, so that it works whatever state the driver is in; the value that means "running" can
/// then still be drained, if it can be reached.
///
/// # Errors
///
/// There is no unit, or it does not let itself be stopped.
pub fn emergency_stop(msr: &mut impl Msr) -> Result<(), GeneralProtection> {
    let ctl: RtitCtl = msr.read()?;
    match ctl.contains(RtitCtl::TRACE_EN) {
        // SAFETY: it only ends writes to memory.
        true => unsafe { msr.write(ctl.difference(RtitCtl::TRACE_EN)) },
        false => Ok(()),
    }
}
