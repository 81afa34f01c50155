//! Reads perf's sideband records: system events during a trace, such as mappings and process switches.
//!
//! Source: Linux, include/uapi/linux/perf_event.h.
//!
//! ```
//! use pugmark_tools::sideband::{Record, StreamConfig, TimedRecord};
//!
//! // PERF_RECORD_SWITCH of process 0x2a at 7, by PERF_SAMPLE_TID | PERF_SAMPLE_TIME
//! let record: Vec<u8> =
//!     [14 | 24 << 48, 0x2a | 0x2b << 32, 7_u64].iter().flat_map(|word| word.to_le_bytes()).collect();
//! let config = StreamConfig { sample_type: 6, ..StreamConfig::default() };
//! let (read, size) = TimedRecord::parse(&record, &config).unwrap();
//! let tid = Some((0x2a, 0x2b));
//! assert_eq!((read.record, read.sample.tid, read.tsc, size), (Record::Switch { out: false }, tid, 7, 24));
//! ```

mod config;
mod problem;
mod record;
mod sample;

pub use config::StreamConfig;
pub use problem::RecordProblem;
pub(crate) use record::AUX_PARTIAL;
pub use record::{AUX_TRUNCATED, Fork, Mmap2, NoRecord, Record, Throttle, TimedRecord};
pub use sample::Sample;
