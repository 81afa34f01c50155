//! Linux as a guest: an unmodified kernel, with busybox and the host's programs, on the monitor or directly on the
//! machine.

mod channel;
mod code_file;
mod debian;
mod guest;
mod initramfs;
mod libraries;
mod machine;
mod named;
mod packages;
mod pages;
mod probe;
mod program;
mod ptwrite;
mod session;
mod version;

pub use debian::DebianKernel;
pub use guest::{Guest, Program};
pub use initramfs::Files;
pub use machine::{Event, LinuxMachine, LinuxOutcome, Monitor};
pub use packages::{Packages, unpack_kernel};
pub use probe::{ProbePart, ProbeTrace};
pub use ptwrite::COUNT as PTWRITE_COUNT;
pub use version::LinuxVersion;
