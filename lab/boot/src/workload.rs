//! What a workload is, and what its checks use.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::iter;
use pugmark_decoder_core::image::Section;

use crate::arch::user::lcg;
use crate::plan::Plan;

/// A prepared workload.
pub(crate) trait Workload {
    /// How it wants to be traced.
    fn plan(&self) -> Plan {
        Plan::everything()
    }

    /// Code outside the image: its bytes, addresses and address spaces.
    fn sections(&self) -> Vec<Section<'_>> {
        Vec::new()
    }

    /// Does the work that is traced.
    fn run(&mut self);

    /// Checks the result of the work.
    ///
    /// # Errors
    /// A result is wrong.
    fn check(&self) -> Result<(), Mismatch>;

    /// Checks that a trace without loss has the packets that the configuration requests besides the flow.
    ///
    /// # Errors
    /// A packet is missing or wrong.
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

/// Compares a result with what it must be.
pub(crate) fn expect(what: &'static str, found: u64, expected: u64) -> Result<(), Mismatch> {
    if found == expected { Ok(()) } else { Err(Mismatch { what, found, expected }) }
}

/// Pseudo-random numbers: Knuth's MMIX generator.
pub(crate) fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    iter::successors(Some(lcg(seed)), |number| Some(lcg(*number)))
}
