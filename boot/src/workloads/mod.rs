//! The workloads: real code, one behaviour per file, each with a result that can be checked.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use pugmark_decoder_core::image::Section;

use crate::trace::Plan;

mod address_spaces;
mod area_faults;
mod buffers;
mod churn;
mod dispatch;
mod exceptions;
mod foreign_nmis;
mod hash_map;
mod interpreter;
mod overflow;
mod ptwrite;
mod range;
mod recursion;
mod returns;
mod shadows;
mod sort;
mod strings;
mod timer;
mod timing;
mod user;

use crate::arch::paging::Left;
use crate::arch::user::Gate;
use buffers::{Buffers, Kind};
use pugmark_protocol::Level;
use user::User;

/// All workloads: their names, and functions that prepare them.
pub(crate) const ALL: [(&str, Make); 31] = [
    ("recursion", || Box::<recursion::Recursion>::default()),
    ("sort", || Box::new(sort::Sort::new())),
    ("hash-map", || Box::<hash_map::Counting>::default()),
    ("dispatch", || Box::new(dispatch::Dispatch::new())),
    ("interpreter", || Box::new(interpreter::Interpreter::new())),
    ("strings", || Box::new(strings::Strings::new())),
    ("timer", || Box::new(timer::Timer::new())),
    ("exceptions", || Box::new(exceptions::Exceptions::new(false))),
    ("events", || Box::new(exceptions::Exceptions::new(true))),
    ("shadows", || Box::<shadows::Shadows>::default()),
    ("syscall", || Box::new(User::new(Gate::SystemCall, true, Level::Any))),
    ("syscall-tf-kept", || Box::new(User::new(Gate::SystemCall, false, Level::Any))),
    ("user-interrupt", || Box::new(User::new(Gate::Interrupt, true, Level::Any))),
    ("filter-os", || Box::new(User::new(Gate::SystemCall, true, Level::Os))),
    ("filter-user", || Box::new(User::new(Gate::Interrupt, true, Level::User))),
    ("area-absent", || Box::new(area_faults::AreaFaults::new(Left::Nothing))),
    ("area-read-only", || Box::new(area_faults::AreaFaults::new(Left::Reading))),
    ("address-spaces", || Box::new(address_spaces::AddressSpaces::new(false))),
    ("filter-cr3", || Box::new(address_spaces::AddressSpaces::new(true))),
    ("filter-range", || Box::new(range::Range::new(false))),
    ("trace-stop", || Box::new(range::Range::new(true))),
    ("timing", || Box::<timing::Timing>::default()),
    ("ptwrite", || Box::new(ptwrite::Ptwrite::new())),
    ("small-buffers", || Box::new(Buffers::new(Kind::Small))),
    ("circular", || Box::new(Buffers::new(Kind::Circular))),
    ("nmi", || Box::new(Buffers::new(Kind::Nmi))),
    ("foreign-nmis", || Box::new(foreign_nmis::ForeignNmis::new())),
    ("single-range", || Box::new(Buffers::new(Kind::SingleRange))),
    ("stop", || Box::new(Buffers::new(Kind::Stop))),
    ("ring", || Box::new(Buffers::new(Kind::Ring))),
    ("overflow", || Box::new(overflow::Overflow::new())),
];

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

/// A result that is not the expected one.
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
fn expect(what: &'static str, found: u64, expected: u64) -> Result<(), Mismatch> {
    if found == expected { Ok(()) } else { Err(Mismatch { what, found, expected }) }
}

/// Pseudo-random numbers: Knuth's MMIX generator.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    core::iter::successors(Some(crate::arch::user::lcg(seed)), |number| Some(crate::arch::user::lcg(*number)))
}
