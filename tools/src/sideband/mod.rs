//! perf's sideband records: what happened on the system while a trace was taken, such as mappings and process switches.
//!
//! Source: Linux, include/uapi/linux/perf_event.h.
//!
//! ```
//! use pugmark_tools::sideband::{Config, RecordLayout, Session, Show, Stream};
//!
//! // PERF_RECORD_SWITCH of process 0x2a at 7, by PERF_SAMPLE_TID | PERF_SAMPLE_TIME
//! let records = [14 | 24 << 48, 0x2a | 0x2b << 32, 7_u64].iter().flat_map(|word| word.to_le_bytes()).collect();
//! let config = Config { sample_type: 6, ..Config::default() };
//! let streams = [Stream::new("a.sb".into(), records, true, config)];
//! let mut lines = Vec::new();
//! let mut session = Session::new(&streams, &mut lines)?;
//! session.show(u64::MAX, &Show { layout: Some(RecordLayout::Compact), ..Show::default() }, &mut lines)?;
//! assert_eq!(lines, b"PERF_RECORD_SWITCH.IN  { 2a/2b 7 }\n");
//! # Ok::<(), std::io::Error>(())
//! ```

mod config;
mod follower;
mod images;
mod problem;
mod record;
mod sample;
mod session;
mod show;
mod stream;

pub use config::Config;
pub use follower::Follower;
pub use images::{Plan, ProcessImages};
pub use problem::{RecordProblem, Warning};
pub use record::{Event, Fork, Mmap2, NoRecord, Record, Throttle};
pub use sample::Sample;
pub use session::Session;
pub use show::{RecordLayout, Show};
pub use stream::{Cursor, Stream};
