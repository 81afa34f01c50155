//! perf's sideband records beside a trace: shown, and followed as libipt's programs follow them.
//!
//! ```
//! use pugmark_ipt_programs::sideband::{MergedStreams, RecordLayout, ShowOptions, Stream};
//! use pugmark_tools::sideband::StreamConfig;
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

mod follower;
mod images;
mod merged;
pub mod options;
mod show;
mod stream;
mod warning;

pub use follower::Follower;
pub use images::{ImagePlan, ProcessImages};
pub use merged::MergedStreams;
pub use show::{RecordLayout, ShowOptions};
pub use stream::{Cursor, Stream};
pub use warning::Warning;
