//! Converts events to registers, as libpfm3's `pfm_dispatch_events` does it for AMD64.

mod assign;
mod error;
mod find;
mod ibs;
mod output;
mod request;

pub use error::{DispatchError, FindError, FindErrorKind};
pub use find::Selection;
pub use output::{ControlRegister, Dispatch, IbsPmds, Pmc, Pmd};
pub use request::{CounterFeatures, CounterFlags, Features, IbsFetch, IbsOp, Request};

pub(crate) use find::find;

use crate::cpu::Cpu;

/// The largest number of counters of a processor.
pub const MAX_COUNTERS: usize = 6;

/// Returns the registers of a request: first the counters in the order of the events, then IBS fetch, then IBS op.
pub(crate) fn dispatch(cpu: &'static Cpu, request: &Request<'_>) -> Result<Dispatch, DispatchError> {
    if request.levels.is_empty() {
        return Err(DispatchError::NoLevels);
    }
    let counters = cpu.bank().counters();
    if request.events.len() > usize::from(counters) {
        return Err(DispatchError::TooManyEvents { events: request.events.len(), counters });
    }
    if let Some(event) = request.events.iter().position(Selection::lacks_mask) {
        return Err(DispatchError::MissingUnitMask { event });
    }
    let ibs = request.features.filter(|features| features.ibs_fetch.is_some() || features.ibs_op.is_some());
    if request.events.is_empty() && ibs.is_none() {
        return Err(DispatchError::NoEvents);
    }
    let mut dispatch = Dispatch::default();
    if !request.events.is_empty() {
        assign::dispatch(cpu, request, &mut dispatch)?;
    }
    if let Some(features) = ibs {
        ibs::dispatch(cpu, features, &mut dispatch)?;
    }
    Ok(dispatch)
}

#[cfg(test)]
mod tests;
