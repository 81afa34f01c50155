//! Linux as a guest: Debian's unmodified kernels on every profile, and perf in them against the monitor's log.

pub mod boots;
pub mod packages;
pub mod verify;

pub use pugmark_launch::linux::{
    DebianKernel, Event, Guest, LinuxMachine, LinuxOutcome, Monitor, Packages, Program,
};

/// perf, for the guest and for the host.
pub const PERF: &str = "/usr/bin/perf";
