//! The workloads: real code, one behaviour per file, each with a result that can be checked.

use alloc::boxed::Box;

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
mod pause;
mod power;
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

use crate::arch::paging::Revocation;
use crate::arch::user::UserEntry;
use crate::workload::Make;
use buffers::{Buffers, Kind};
use pugmark_protocol::Level;
use user::User;

pub(crate) use churn::Churn;
pub(crate) use returns::Returns;
pub(crate) use sort::Sort;

/// All workloads: their names, and functions that prepare them.
pub(crate) const ALL: [(&str, Make); 33] = [
    ("recursion", || Box::<recursion::Recursion>::default()),
    ("sort", || Box::new(sort::Sort::new())),
    ("hash-map", || Box::<hash_map::KeyCounts>::default()),
    ("dispatch", || Box::new(dispatch::Dispatch::new())),
    ("interpreter", || Box::new(interpreter::Interpreter::new())),
    ("strings", || Box::new(strings::Strings::new())),
    ("timer", || Box::new(timer::Timer::new())),
    ("exceptions", || Box::new(exceptions::Exceptions::new(false))),
    ("events", || Box::new(exceptions::Exceptions::new(true))),
    ("shadows", || Box::<shadows::Shadows>::default()),
    ("syscall", || Box::new(User::new(UserEntry::SystemCall, true, Level::Any))),
    ("syscall-tf-kept", || Box::new(User::new(UserEntry::SystemCall, false, Level::Any))),
    ("user-interrupt", || Box::new(User::new(UserEntry::Interrupt, true, Level::Any))),
    ("filter-os", || Box::new(User::new(UserEntry::SystemCall, true, Level::Os))),
    ("filter-user", || Box::new(User::new(UserEntry::Interrupt, true, Level::User))),
    ("area-absent", || Box::new(area_faults::AreaFaults::new(Revocation::Absent))),
    ("area-read-only", || Box::new(area_faults::AreaFaults::new(Revocation::ReadOnly))),
    ("address-spaces", || Box::new(address_spaces::AddressSpaces::new(false))),
    ("filter-cr3", || Box::new(address_spaces::AddressSpaces::new(true))),
    ("filter-range", || Box::new(range::AddressRanges::new(false))),
    ("trace-stop", || Box::new(range::AddressRanges::new(true))),
    ("timing", || Box::<timing::Timing>::default()),
    ("ptwrite", || Box::new(ptwrite::Ptwrite::new())),
    ("power", || Box::<power::Power>::default()),
    ("small-buffers", || Box::new(Buffers::new(Kind::Small))),
    ("circular", || Box::new(Buffers::new(Kind::Circular))),
    ("nmi", || Box::new(Buffers::new(Kind::Nmi))),
    ("foreign-nmis", || Box::new(foreign_nmis::ForeignNmis::new())),
    ("pause", || Box::new(pause::Pauses::new())),
    ("single-range", || Box::new(Buffers::new(Kind::SingleRange))),
    ("stop", || Box::new(Buffers::new(Kind::Stop))),
    ("ring", || Box::new(Buffers::new(Kind::Ring))),
    ("overflow", || Box::new(overflow::Overflows::new())),
];

/// The workloads that use no part of the kernel that is limited to one processor at a time.
const ON_ALL: [&str; 11] = [
    "recursion",
    "sort",
    "hash-map",
    "dispatch",
    "interpreter",
    "strings",
    "small-buffers",
    "circular",
    "nmi",
    "stop",
    "ring",
];

/// Returns true if this workload runs on all processors at the same time, if there are several.
pub(crate) fn may_run_on_all(name: &str) -> bool {
    ON_ALL.contains(&name)
}
