//! Linux as a guest: Debian's unmodified kernel, with busybox, perf and the host's programs, on the monitor or directly
//! on the machine.

pub mod boots;
mod channel;
mod code_file;
mod debian;
mod guest;
mod initramfs;
mod libraries;
mod machine;
pub mod packages;
mod pages;
mod probe;
mod program;
mod ptwrite;
mod session;
pub mod verify;

pub use debian::DebianKernel;
pub use guest::{Guest, Program};
pub use initramfs::Files;
pub use machine::{Event, LinuxMachine, LinuxOutcome, Monitor};
pub use probe::{ProbePart, ProbeTrace};

/// perf, for the guest and for the host.
pub const PERF: &str = "/usr/bin/perf";
