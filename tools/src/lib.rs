//! Host programs around the decoder: `ptdump` shows the packets of a trace, `ptxed` its instructions, `pugmark` makes
//! traces and decodes them to totals.
//!
//! Options, output and messages of the first two are libipt's, so that one can stand in for the other; hence the
//! hand-written reading of command lines and of C numbers.
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
pub mod processors;
pub mod ptdump;
pub mod ptxed;
pub mod pugmark;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod record;
pub mod sideband;
pub mod text;
