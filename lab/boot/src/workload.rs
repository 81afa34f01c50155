//! The interface of a workload, and helpers for its checks.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::iter;
use pugmark_decoder_core::image::Section;

use crate::arch::user::lcg;
use crate::plan::Plan;

/// A prepared workload.
pub(crate) trait Workload {
    /// Returns the plan for tracing this workload.
    fn plan(&self) -> Plan {
        Plan::everything()
    }

    /// Returns code outside the image: its bytes, addresses and address spaces.
    fn sections(&self) -> Vec<Section<'_>> {
        Vec::new()
    }

    /// Does the traced work.
    fn run(&mut self);

    /// Checks the result of the work.
    ///
    /// # Errors
    /// If a result is wrong.
    fn check(&self) -> Result<(), Mismatch>;

    /// Checks that a trace without loss has the packets that the configuration requests besides those of control flow.
    ///
    /// # Errors
    /// If a packet is missing or wrong.
    fn check_trace(&self, _trace: &[u8]) -> Result<(), Mismatch> {
        Ok(())
    }
}

/// A result that differs from the expected one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mismatch {
    pub(crate) what: &'static str,
    pub(crate) found: u64,
    pub(crate) expected: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, found, expected } = self;
        write!(f, "{what} is {found}, not {expected}")
    }
}

/// Prepares a workload.
pub(crate) type Make = fn() -> Box<dyn Workload>;

/// Compares a result with the expected one.
pub(crate) fn expect(what: &'static str, found: u64, expected: u64) -> Result<(), Mismatch> {
    if found == expected { Ok(()) } else { Err(Mismatch { what, found, expected }) }
}

/// Returns pseudo-random numbers from Knuth's MMIX generator.
pub(crate) fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    iter::successors(Some(lcg(seed)), |number| Some(lcg(*number)))
}
