//! The units of Intel's processors: Processor Trace, the debug store with branch records and samples, and last branch
//! records.
//!
//! ```
//! use pugmark_kernel::{cpuid::CpuIdResult, intel::pt::PtCapabilities, lifecycle::Missing};
//!
//! // Each unit says why a processor lacks it: CPUID.7 of this one announces no Intel PT.
//! let cpuid = |leaf: u32, _: u32| match leaf {
//!     0 => CpuIdResult { eax: 0xd, ebx: 0x756e_6547, ecx: 0x6c65_746e, edx: 0x4965_6e69 },
//!     _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
//! };
//! assert_eq!(PtCapabilities::read(cpuid).err(), Some(Missing::ProcessorTrace));
//! ```

pub mod bts;
pub mod counters;
pub mod ds;
pub(crate) mod errata;
pub mod lbr;
pub mod pebs;
pub mod pt;
