//! perf's records beside a trace: what happened on the system while it was taken.
//!
//! Source: Linux, include/uapi/linux/perf_event.h.

mod config;
mod context;
mod record;
mod sample;
mod session;
mod show;
mod stream;

pub use config::Config;
pub use context::Context;
pub use record::{Event, Fork, Mmap2, NoRecord, Record, Throttle};
pub use sample::Sample;
pub use session::Session;
pub use show::{Layout, Show};
pub use stream::{Stop, Stream};
