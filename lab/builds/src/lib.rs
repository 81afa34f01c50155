//! Cargo on this workspace: its commands, the test binaries that it makes, a copy of the tree in which sources can be
//! changed, and jobs that run side by side.

pub mod cargo;
pub mod parallel;
pub mod test_binaries;
pub mod workspace_copy;
