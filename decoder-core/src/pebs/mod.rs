//! Processor Event Based Sampling (PEBS): when a counter has overflowed, the processor itself stores a record of its
//! state, in a buffer of the DS (debug store) area, which is memory that a driver sets up, or in the trace of Intel PT
//! ([`PebsBlocks`]).
//!
//! ```
//! use pugmark_decoder_core::pebs::{Format, PebsRecord, PebsRecords, Registers};
//!
//! // A record of a processor whose IA32_PERF_CAPABILITIES[11:8] is 3.
//! let format = Format::from_capabilities(3).unwrap();
//! let record = PebsRecord {
//!     registers: Some(Registers { rip: 0x1003, rflags: 0x202, ..Registers::default() }),
//!     eventing_ip: Some(0x1000),
//!     applicable_counters: Some(0b1),
//!     tsc: Some(77),
//!     ..PebsRecord::default()
//! };
//! let mut buffer = [0; 256];
//! let len = record.emit(format, &mut buffer)?;
//! assert_eq!(len, 200);
//!
//! let read: Result<Vec<_>, _> = PebsRecords::new(&buffer[..len], format).collect();
//! let read = read?[0];
//! assert_eq!((read.eventing_ip, read.next_ip(), read.tsc), (Some(0x1000), Some(0x1003), Some(77)));
//! assert_eq!(read.global_status, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The fields of a record depend on its format, and from format 4 on also on the record itself. A missing field is
//! `None`.
//!
//! Source: SDM vol. 3, Performance Monitoring, "Processor Event Based Sampling (PEBS)", "PEBS Record Format" and the
//! tables "PEBS Record Format" of each microarchitecture; for format 4 "Adaptive PEBS". For formats 5 and 6 Linux,
//! `arch/x86/events/intel/ds.c` and `arch/x86/include/asm/perf_event.h`, by Intel's authors; so for architectural
//! PEBS, whose records ([`Format::Architectural`]) are in a buffer of their own.

mod adaptive;
mod architectural;
mod blocks;
mod counters;
mod fixed;
mod memory;
mod record;
mod registers;
#[cfg(test)]
mod tests;
mod words;

pub use blocks::{PebsAssembly, PebsBlocks, TracedRecord};
pub use counters::CounterValues;
pub use memory::{DataSourceEncoding, Memory, TxAbort};
pub use record::{Format, PebsRecord, PebsRecords, SampledBranch, SampledBranches};
pub use registers::{Registers, VectorRegisters};
