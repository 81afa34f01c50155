//! Instruction-Based Sampling (IBS): AMD's processors sample one in many instruction fetches or ops (micro-operations)
//! and report its details in registers.
//!
//! ```
//! use pugmark_decoder_core::ibs::{Caps, DataSource, RawRegisters, OpRegisters, Part, RawSample, RawSamples, Sample};
//!
//! // A load at 401000 that missed L1 and L2 and got its data from memory, as Linux' perf reports it.
//! let part = Part { family: 0x17, model: 0x31, caps: Caps(0x3ff) };
//! let registers = OpRegisters {
//!     ctl: 1 << 17 | 1 << 18 | 0x4000,
//!     rip: 0x40_1000,
//!     data: 1 << 38,
//!     data2: 3,
//!     data3: 1 | 1 << 7 | 1 << 20 | 300 << 32,
//!     ..OpRegisters::default()
//! };
//! let mut buffer = [0; RawSample::MAX_BYTES];
//! let len = RawSample { caps: part.caps, kind: RawRegisters::Op(registers) }.emit(&mut buffer)?;
//!
//! let record = RawSamples::new(&buffer[..len]).next().unwrap()?;
//! let Some(Sample::Op(op)) = record.sample(part) else { panic!("no sample of an op") };
//! let access = op.access().unwrap();
//! assert_eq!((access.source(), access.miss_latency()), (Some(DataSource::Dram), Some(300)));
//! // The processor reports that the instruction's address and the data's address are not valid.
//! assert_eq!((op.rip(), access.linear_address()), (None, None));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A field is `None` if the processor does not have it or marks it as invalid in this sample: the register's bits are
//! then meaningless.
//!
//! Source: APM vol. 2, Debug and Performance Resources, "Instruction-Based Sampling"; the registers in BKDG 31116
//! (family 10h) and PPR 56176 (family 17h).

mod access;
mod caps;
mod errata;
mod fetch;
mod op;
mod record;
mod source;
#[cfg(test)]
mod tests;

pub use access::{Access, Dtlb};
pub use caps::{Caps, Part};
pub use errata::IbsErrata;
pub use fetch::{FetchRegisters, FetchSample, PageSize};
pub use op::{OpCount, OpRegisters, OpSample, RetiredBranch};
pub use record::{RawRegisters, RawSample, RawSamples, Sample};
pub use source::{CacheState, DataSource};
