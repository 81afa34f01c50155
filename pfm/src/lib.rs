//! libpfm's names for the performance counters of AMD processors, and the register values that they stand for.
//!
//! A counter counts one kind of event, such as a cache miss, which a number in its event select register chooses.
//! libpfm gives these numbers names, which PAPI accepts, and perf with `--pfm-events`. This crate has these names, from
//! K7 to family 1Ah, without libpfm: the results are the same, errors included. The results are plain numbers, to be
//! written by a driver.
//!
//! The crate uses no heap and no I/O, so a kernel that programs its own counters can accept event strings.
//!
//! # The parts
//!
//! ```text
//!            events/*.tsv, the tables as data; build/ compiles them in
//!                                   |
//!                                 table         an event: its name, number, unit masks and text
//!                                   |
//!                                 family        the processors with one table: modifiers, number of counters
//!                 +-----------------+----------------+
//!                pmu       by libpfm4's names       cpu        by libpfm3's revisions
//!                 |                                  |
//!  "EVENT:MASK:u"-+                    "EVENT:MASK" -+
//!                 v                                  v
//!               encode                            dispatch     find: what the strings select
//!                 | attribute: masks, modifiers      |         assign: a counter for each event
//!                 | choice: the masks together       |         ibs: the units of IBS
//!                 +---------> event_select <---------+
//!                 v         the register's bits      v
//!             Encoding                            Dispatch     registers to write (PMCs) and to read (PMDs)
//! ```
//!
//! Use [`encode()`] for one event, if another party assigns the counters, such as Linux. Use [`Cpu::dispatch`] for a
//! kernel that owns the counters, or for IBS.
//!
//! # Examples
//!
//! **An event string**, as libpfm4 reads it. A [`Pmu`] has events, events have unit masks and modifiers, and
//! [`encode()`] converts them to the value of a PERFEVTSEL register.
//!
//! ```
//! use pugmark_pfm::{Levels, Pmu, encode};
//!
//! let pmu = Pmu::detect(0x10, 2, 3).unwrap();
//! assert_eq!(pmu.name(), "amd64_fam10h_barcelona");
//! let event = pmu.event("DATA_CACHE_REFILLS").unwrap();
//! assert_eq!((event.code(), pmu.unit_masks(event).count()), (0x42, 6));
//!
//! let encoding = encode("amd64_k8_revf::DATA_CACHE_MISSES:u:e=1:c=2", Levels::default())?;
//! assert_eq!(encoding.select(), 0x255_0041);
//! # Ok::<(), pugmark_pfm::EncodeError<'_>>(())
//! ```
//!
//! **Several events at once**, as libpfm3 programs them. A [`Cpu`] selects events, assigns them to available counters,
//! and also sets up the units of Instruction Based Sampling (IBS).
//!
//! ```
//! use pugmark_pfm::{Cpu, dispatch::{Features, IbsOp, Request}};
//!
//! let cpu = Cpu::by_name("fam10h_revc").unwrap();
//! let events = [cpu.select("CPU_CLK_UNHALTED")?, cpu.select("L2_CACHE_MISS:DATA:TLB_WALK")?];
//! let op = IbsOp { max_count: 0x1_0000, ops: false };
//! let request = Request {
//!     events: &events,
//!     // Somebody else has counter 0.
//!     unavailable: 0b1,
//!     features: Some(Features { ibs_op: Some(op), ..Features::default() }),
//!     ..Request::default()
//! };
//! let dispatch = cpu.dispatch(&request)?;
//! let written = dispatch.pmcs().iter().map(|pmc| (pmc.msr(), pmc.value)).collect::<Vec<_>>();
//! assert_eq!(written, [(0xc001_0001, 0x53_0076), (0xc001_0002, 0x53_067e), (0xc001_1033, 0x2_1000)]);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Missing parts
//!
//! The northbridge and L3 units of newer families are missing; they are separate PMUs in libpfm4. This crate reproduces
//! oddities of libpfm, and a comment marks each.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate alloc;

mod cpu;
pub mod dispatch;
pub mod encode;
mod event_select;
mod family;
mod levels;
mod number;
mod pmu;
mod table;

pub use cpu::Cpu;
pub use dispatch::{DispatchError, FindError};
pub use encode::{EncodeError, EncodeErrorKind, Encoding, encode};
pub use family::{CounterBank, Modifier};
pub use levels::Levels;
pub use pmu::Pmu;
pub use table::{Event, UnitMask};
