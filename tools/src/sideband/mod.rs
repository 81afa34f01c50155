//! perf's sideband records: system events during a trace, such as mappings and process switches.
//!
//! Source: Linux, include/uapi/linux/perf_event.h.
//!
//! ```
//! use pugmark_tools::sideband::{MergedStreams, RecordLayout, ShowOptions, Stream, StreamConfig};
//!
//! // PERF_RECORD_SWITCH of process 0x2a at 7, by PERF_SAMPLE_TID | PERF_SAMPLE_TIME
//! let records = [14 | 24 << 48, 0x2a | 0x2b << 32, 7_u64].iter().flat_map(|word| word.to_le_bytes()).collect();
//! let config = StreamConfig { sample_type: 6, ..StreamConfig::default() };
//! let streams = [Stream::new("a.sb".into(), records, true, config)];
//! let mut lines = Vec::new();
//! let mut merged = MergedStreams::new(&streams, &mut lines)?;
//! merged.show(u64::MAX, &ShowOptions { layout: Some(RecordLayout::Compact), ..ShowOptions::default() }, &mut lines)?;
//! assert_eq!(lines, b"PERF_RECORD_SWITCH.IN  { 2a/2b 7 }\n");
//! # Ok::<(), std::io::Error>(())
//! ```

mod config;
mod follower;
mod images;
mod merged;
mod problem;
mod record;
mod sample;
mod show;
mod stream;

pub use config::StreamConfig;
pub use follower::Follower;
pub use images::{ImagePlan, ProcessImages};
pub use merged::MergedStreams;
pub use problem::{RecordProblem, Warning};
pub(crate) use record::{AUX_PARTIAL, AUX_TRUNCATED};
pub use record::{Fork, Mmap2, NoRecord, Record, Throttle, TimedRecord};
pub use sample::Sample;
pub use show::{RecordLayout, ShowOptions};
pub use stream::{Cursor, Stream};
