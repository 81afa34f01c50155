//! `pugmark` records traces and says what is in them, and the library beneath it.
//!
//! `pugmark` has subcommands: `record` makes a trace of a program on any Linux machine, `decode` counts what is in a
//! trace, `report`, `script`, `timeline` and others show it; `pmc`, `ibs`, `pebs` and `mem` are about counters and
//! samples. libipt's `ptdump` and `ptxed` are programs of `libipt/`, which reads files with this library.
//!
//! # The parts
//!
//! ```text
//!  source        files of perf record: traces, and what the system did meanwhile     source, perf_clock
//!                other traces: a file, a part of one, a recording's folder            pugmark/recording
//!       │
//!  timeline      which code each process had when, which thread each processor ran    timeline
//!       │
//!  session       one walk over all traces, which switches code and thread             session, pugmark/loaded
//!       │
//!  visitors      counts, calls, transfers                                pugmark/{layers,coverage,walk,transfers}
//!       │
//!  views         a command each, with names from symbols
//!
//!  code          ELF files, raw bytes, image.json                                     code, pugmark/code
//!  names         functions, object files, lines of source of addresses                symbols
//!  perf's records                                                                     sideband
//!  what made it  the processor, its errata and clocks                                 cpu, processors, description
//!       │
//!       ├─▶ decode, bench     layers: what any layer of the decoder returns, counted; totals; check
//!       ├─▶ walk              calls and returns, with names from symbols
//!       │     └─▶ timeline, flamegraph, last, calls, diff, report --children, script --call-trace
//!       ├─▶ report, script, coverage     what was executed, counted or listed
//!       └─▶ pmc, ibs, pebs, mem     counters and samples: no trace, or what lies in it
//!                                                                                  output: all that is printed
//!
//!  a program ─▶ pugmark/record     the command line of pugmark-recorder, which writes a folder
//! ```
//!
//! Folders import in one direction only: `session` from nothing here, `symbols` from `code` and `source`, `timeline`
//! from `source`, `source` from `sideband`, all of them from what they share (`file`, `number`, `text`, `output` and
//! others).
//!
//! # Example
//!
//! A trace, counted as `pugmark decode` does. Its code is a conditional jump over a NOP to an indirect jump.
//!
//! ```
//! use pugmark_tools::pugmark::{code::TracedCode, decode::{self, Layer}, progress::Progress};
//!
//! let trace = [
//!     &[0x02, 0x82].repeat(8)[..],    // PSB
//!     &[0x99, 0x01, 0x02, 0x23],      // MODE.Exec: 64-bit code; PSBEND
//!     &[0x31, 0x00, 0x10],            // TIP.PGE: tracing begins at 1000h
//!     &[0x06, 0x01],                  // TNT: the jump was taken; TIP.PGD: tracing ends at the indirect jump
//! ]
//! .concat();
//!
//! let mut code = TracedCode::default();
//! code.add(0x1000, vec![0x75, 0x01, 0x90, 0xff, 0xe0]);
//! let totals =
//!     decode::decode(&trace, &code, Default::default(), Layer::Insns, false, &mut Progress::hidden());
//! assert_eq!((totals.packets, totals.instructions, totals.errors.len()), (6, 2, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod code;
pub mod cpu;
pub mod description;
pub mod digits;
pub mod file;
pub mod mapped;
pub mod number;
#[cfg(test)]
mod object_file;
pub mod output;
pub mod perf_clock;
pub mod processors;
pub mod pugmark;
pub mod session;
pub mod sideband;
pub mod source;
pub mod symbols;
pub mod text;
pub mod timeline;
