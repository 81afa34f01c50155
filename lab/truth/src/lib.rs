//! The truth log: the instructions that really retired in the guest, as seen by the monitor below it.
//!
//! The monitor appends one [`Record`] for every instruction that it sees retire. While branches are recorded, it also
//! appends one record for each [`Branch`], and at times one with the time. The test harness reads the records from the
//! file that backs the machine's memory and compares the decoder's results with them. The log is in a region of RAM
//! that the guest cannot reach: a [`Header`] followed by records. Two modes need a fixed amount of memory for any
//! number of instructions: a ring keeps the last records, and sums keep a count and a hash (see [`LogMode`]).
//!
//! ```
//! use core::sync::atomic::AtomicU64;
//! use pugmark_truth::{Log, LogWriter, Record, RecordFlags};
//!
//! let words = [const { AtomicU64::new(0) }; 64];
//! let writer = LogWriter::new(&words)?;
//! writer.append(Record { rip: 0x1000, cr3: 0x2000, session: 1, flags: RecordFlags::new(3), cpu: 0 });
//! writer.close(0x10);
//!
//! // The harness reads it from the file.
//! let word = |word: &AtomicU64| word.load(core::sync::atomic::Ordering::Relaxed).to_le_bytes();
//! let bytes: Vec<u8> = words.iter().flat_map(word).collect();
//! let log = Log::new(&bytes)?;
//! assert_eq!(log.header().exit(), Some(0x10));
//! assert_eq!(log.records().map(|record| record.rip).collect::<Vec<_>>(), [0x1000]);
//! # Ok::<(), pugmark_truth::TruthError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod error;
mod header;
mod mode;
pub mod probe;
mod reader;
mod record;
mod sums;
mod writer;

pub use error::TruthError;
pub use header::Header;
pub use mode::LogMode;
pub use reader::{Log, Records};
pub use record::{Branch, BranchKind, Record, RecordFlags};
pub use sums::Sum;
pub use writer::LogWriter;

/// Physical address of the log in a machine of 512 MiB: above the monitor, below the end of RAM.
pub const REGION_BASE: u64 = 320 << 20;

/// Size of the log's region in bytes.
pub const REGION_BYTES: u64 = 160 << 20;
