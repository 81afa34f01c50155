//! Intel's processors as a whole: MSR writes and instructions in, memory and packets out.

pub(crate) mod debug_store;
pub(crate) mod machine;
mod registers;
mod sampled_events;
mod traced_samples;
mod version_6;
