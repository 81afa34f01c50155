//! Converts events to registers, like libpfm3's `pfm_dispatch_events` for AMD64.
//!
//! ```
//! use pugmark_pfm::{Cpu, Levels, dispatch::Request};
//!
//! let cpu = Cpu::by_name("fam10h_revc").expect("it is in the table");
//! let events = [cpu.select("CPU_CLK_UNHALTED").expect("it has this event")];
//! let request = Request { events: &events, levels: Levels::USER, features: None, unavailable: 0 };
//! let dispatch = cpu.dispatch(&request)?;
//! // The first counter's event select: event 76H, USR, INT and EN.
//! assert_eq!(dispatch.pmcs()[0].value, 0x51_0076);
//! # Ok::<(), pugmark_pfm::DispatchError>(())
//! ```

mod assign;
mod error;
mod find;
mod ibs;
mod ibs_control;
mod output;
mod request;

pub use error::{DispatchError, FindError, FindErrorKind};
pub use find::Selection;
pub use output::{ControlRegister, Dispatch, IbsPmds, MAX_COUNTERS, Pmc, Pmd};
pub use request::{CounterFeatures, CounterFlags, Features, IbsFetch, IbsOp, Request};

use crate::cpu::Cpu;

impl Cpu {
    /// Selects an event: `EVENT`, followed by its unit masks, each after a `:`.
    ///
    /// A unit mask is a name in any case, or a number: the code of one, or the codes of several combined. An event with
    /// unit masks needs one, even if it has a default; an event without unit masks takes none.
    ///
    /// # Errors
    /// The first error in the string.
    pub fn select<'a>(&'static self, event: &'a str) -> Result<Selection, FindError<'a>> {
        find::find(self, event)
    }

    /// Assigns events to counters, sets up the IBS units, and returns the registers to write.
    ///
    /// # Errors
    /// If the request needs something that the processor does not have.
    pub fn dispatch(&'static self, request: &Request<'_>) -> Result<Dispatch, DispatchError> {
        dispatch(self, request)
    }
}

/// Returns the registers of a request: first the counters in the order of the events, then IBS fetch, then IBS op.
fn dispatch(cpu: &'static Cpu, request: &Request<'_>) -> Result<Dispatch, DispatchError> {
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
