//! Intel's branch trace store on one logical processor.

mod config;
mod control;
mod running;
mod session;
mod stopped;
#[cfg(test)]
mod tests;
mod unit;

pub use config::{BtsConfig, BtsRefusal, Gate};
pub use control::{Control, ControlRegister};
pub use running::{BtsSource, Messages, Running, State, StopFailed};
pub use stopped::{Records, Stopped};
pub use unit::{NotStarted, StartError, Unit};

use crate::ds::DsCapabilities;
use crate::msr::{GeneralProtection, Msr};

/// What records branches: nobody else may, while this driver does.
pub(crate) const RECORDERS: Control = Control::LBR.union(Control::TR).union(Control::BTS);

/// Stops the branch trace store of this processor, whoever started it: for a kernel that panics and wants to keep what
/// was recorded.
///
/// # Errors
///
/// The control register is not there.
pub fn emergency_stop(msr: &mut impl Msr, capabilities: &DsCapabilities) -> Result<(), GeneralProtection> {
    let bits = msr.rdmsr(ControlRegister::ADDRESS)?;
    let on = capabilities.control.bits(Control::TR.union(Control::BTS).union(Control::BTINT));
    match bits & on {
        0 => Ok(()),
        // SAFETY: it only ends writes to memory.
        _ => unsafe { msr.wrmsr(ControlRegister::ADDRESS, bits & !on) },
    }
}
