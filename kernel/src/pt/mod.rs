//! The PT unit of one logical processor: started, running, stopped.

mod error;
mod ring;
mod running;
mod session;
mod stopped;
mod unit;

pub use error::OperationalError;
pub use running::{Running, State};
pub use session::Session;
pub use stopped::{Stopped, Trace};
pub use unit::{PtRefusal, Unit};

pub(crate) use ring::Ring;

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
