//! The names of traced code: functions, object files and lines of source of addresses, and variables of data.
//!
//! ```text
//!  ELF file, its separate debug file, .gnu_debugdata     functions, debug_files, packed, object
//!  .eh_frame                                             extents
//!  DWARF                                                 lines
//!  /proc/kallsyms                                        kernel
//!  /tmp/perf-PID.map, jitdump                            perf_map, jitdump
//!       │
//!       ├─▶ table      functions by address, none in another, and their names    names: demangled, printable
//!       └─▶ traced     what is mapped where: the way from an address to its name
//! ```
//!
//! Each file is read once for all processes (`SymbolFiles`), and only when the first name in it is asked for. Files
//! may be damaged, or made to do harm: nothing but regular files is read, what is compressed is unpacked up to a limit,
//! and names have no character that a terminal obeys.
//!
//! The readers of what runtimes and kernels write as text or as a stream are open to everybody:
//!
//! ```
//! use pugmark_tools::symbols::JitSymbols;
//!
//! let map = JitSymbols::parse("7f0000001000 2a LazyCompile:~main\n", 42);
//! assert_eq!(map.find(0x7f00_0000_1005), Some(("LazyCompile:~main", 5)));
//! ```

mod data;
mod debug_files;
mod extents;
mod functions;
mod jitdump;
mod kernel;
mod lines;
mod names;
mod object;
mod packed;
mod perf_map;
mod table;
mod traced;

pub(crate) use self::object::SymbolFiles;
pub use self::object::elf_functions;
pub(crate) use data::DataSymbols;
pub(crate) use debug_files::{DebugFolders, crc32};
pub(crate) use functions::{extent, functions};
pub use jitdump::JitDump;
pub use kernel::KernelSymbols;
pub(crate) use lines::{ProfilePlace, SourceLine, SourceLines, SourcePlace};
pub use perf_map::JitSymbols;
pub(crate) use traced::{MappedPart, NamedPlace, OTHER_CODE, TracedSymbols, moved};
