//! The text protocol in which a kernel under test reports its results: one [`Line`] for each fact.
//!
//! The bootable kernel prints lines to the serial port with `Display`, and the harness reads them back with
//! [`Line::parse`]. Other kernels may print them by hand.
//!
//! The lines:
//!
//! - `run NAME`: a workload begins
//! - `session NAME N`: the workload's records in the truth log have the marker N
//! - `filter NAME cpl=any|0|3 cr3=any|0x… range=any|SYMBOL..SYMBOL stop=none|SYMBOL..SYMBOL`: the part of the
//!   workload to trace; an absent key does not filter
//! - `stat NAME instructions=N bytes=N bpi=F pmis=N loss=N [decode_us=N] count=N hash=0x… [branches=N]`: the
//!   measurements of the driver and the decoder; `instructions` and `bpi` follow from the others, and are not read
//! - `top NAME RANK SYMBOL COUNT`: a function and the number of instructions that it executed
//! - `piece NAME INDEX count=N hash=0x… first=0x… last=0x… after=start|psb|ovf|stop|wrap|full|error|off`: a
//!   contiguous part of the decode
//! - `records NAME INDEX count=N hash=0x… after=…`: branch records without a gap
//! - `count NAME session=N event=0x… value=N`: the count of a performance counter, in its own session
//! - `samples NAME session=N of=instructions|branches|ops|cycles period=N taken=N lost=N skipped=N unplaced=N`: the
//!   samples of a session, by their fate
//! - `sample NAME SESSION 0x… COUNT`: a sampled address, and the number of its samples
//! - `precise NAME SESSION 0x…|none 0x…|none`: a sample: the address of the event's instruction, and the address
//!   where execution continued; in order
//! - `missing NAME SESSION`: precise samples are missing before the next one
//! - `last NAME session=N stack=branches|calls entries=N`: the last branches when a session ended
//! - `branch NAME SESSION 0x… 0x…`: one of the last branches: source, target; the newest first
//! - `fault NAME address=0x… code=0x…`: a page fault caused by an access to the debug store
//! - `lost NAME ovf=N stop=N wrap=N full=N stray=N`: losses, by kind; a kind that is absent was not lost, and several
//!   of a kind add up
//! - `probe NAME msr=0x… [value=0x…]`: an access to an MSR that must be refused
//! - `refuse NAME REASON`: the driver declined; the reason names the CPUID bit
//! - `dump NAME bytes=N`: the next N bytes of the debug console are a contiguous part of the trace
//! - `section NAME base=0x… len=N from=0x… cr3=any|0x…`: traced code, executed at `base`; its bytes are at
//!   `from` in the image
//! - `ok NAME`: a workload ended well
//! - `fail NAME: REASON`: a workload failed
//! - `done PASSED FAILED`: all workloads ended
//!
//! Words are separated by spaces; keys may come in any order. A number is decimal, or hexadecimal after `0x`. Counts
//! are numbers of instructions; a hash is FNV-1a 64 over their addresses as little-endian `u64`. For a branch record
//! both addresses are hashed, first the source, then the target. A kernel that ends without `done` has failed.
//!
//! ```
//! use pugmark_protocol::{Count, Line};
//!
//! let line: Line = Line::Count("sort", Count { session: 3, event: 0xc0, value: 77 });
//! let text = line.to_string();
//! assert_eq!(text, "count sort session=3 event=0xc0 value=77");
//! assert_eq!(Line::parse(&text), Ok(line));
//!
//! let error = Line::parse("count sort session=3 event=many value=77").unwrap_err();
//! assert_eq!(error.to_string(), "at byte 27: event is \"many\", which is no number, or too large a one");
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod error;
mod fields;
mod line;
#[cfg(test)]
mod tests;
mod words;

pub use error::{ParseError, ParseErrorKind};
pub use fields::{
    Access, After, Branch, CodeSection, Count, EventKind, Fault, Filter, Last, Level, Lost, Piece, Precise,
    Records, Sample, Samples, Stat, SymbolRange,
};
pub use line::{Done, Line, Top};
