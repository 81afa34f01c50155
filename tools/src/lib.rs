//! Host programs built on the decoder: `ptdump` shows the packets of a trace, `ptxed` shows its instructions, and
//! `pugmark` records traces and decodes them to totals.
//!
//! The first two have the options, output and messages of libipt's programs, so that each can replace its counterpart.
//! That is why command lines and C numbers are parsed by hand.
//!
//! ```
//! use pugmark_tools::{file::FileRange, number};
//!
//! assert_eq!(number::parse("0x20"), Some(32));
//! let range: FileRange = "trace.pt:0x10-0x20".parse().unwrap();
//! assert_eq!((range.name.as_str(), range.from, range.to), ("trace.pt", 0x10, Some(0x20)));
//! ```

pub mod args;
pub mod code;
pub mod cpu;
pub mod description;
pub mod file;
pub mod number;
pub mod output;
pub mod perf_data;
pub mod processors;
pub mod ptdump;
pub mod ptxed;
pub mod pugmark;
pub mod sideband;
pub mod text;
