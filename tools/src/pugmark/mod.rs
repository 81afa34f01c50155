//! `pugmark`: decodes traces to totals, and measures how fast.
//!
//! ```
//! use pugmark_tools::pugmark::{code::TracedCode, decode::{self, Layer}, progress::Progress};
//!
//! // PSB, PSBEND, TSC
//! let trace = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x23\x19\x01\0\0\0\0\0\0";
//! let code = TracedCode::default();
//! let totals = decode::decode(trace, &code, Default::default(), Layer::Packets, false, &mut Progress::hidden());
//! assert_eq!((totals.packets, totals.tsc_first), (3, Some(1)));
//! ```

pub mod annotate;
mod bdm70;
pub mod bench;
pub mod between;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod boot;
pub mod branches;
pub mod calls;
pub mod check;
pub mod cli;
pub mod code;
mod code_names;
pub mod coverage;
pub mod decode;
pub mod diff;
mod disassembly;
pub mod flamegraph;
pub mod gdb;
mod hashing;
pub mod ibs;
pub mod input;
mod known_blocks;
pub mod last;
pub mod layers;
mod line_counts;
mod loaded;
#[cfg(test)]
mod made_traces;
pub mod manual;
pub mod mem;
mod named_session;
mod notes;
pub mod options;
pub mod pebs;
pub mod pmc;
pub mod processor;
pub mod progress;
mod protobuf;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod record;
pub mod recording;
pub mod report;
pub mod script;
mod segments;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod stat;
mod taken_branches;
mod threads;
pub mod timeline;
pub mod totals;
mod transitions;
mod values;
pub mod verdict;
mod visitors;
mod wanted_function;
