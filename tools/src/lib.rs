//! Host programs built on the decoder: `ptdump` shows the packets of a trace, `ptxed` its instructions, and `pugmark`
//! records traces and says what is in them.
//!
//! The first two have the options, output and messages of libipt's programs, so that each can replace its counterpart.
//! That is why their command lines and C's numbers are parsed by hand. `pugmark` has subcommands: `record` makes a
//! trace of a program on any Linux machine, `decode` counts what is in a trace, `report`, `script`, `timeline` and
//! others show it; `pmc`, `ibs`, `pebs` and `mem` are about counters and samples.
//!
//! # The parts
//!
//! ```text
//!  source        files of perf record: traces, and what the system did meanwhile     source, perf_clock
//!                other traces: a file, a part of one, a recording's folder            file, pugmark/recording
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
//!  perf's records, and ptxed's own walk by them                                       sideband
//!  what made it  the processor, its errata and clocks                                 cpu, processors, description
//!       │
//!       ├─▶ ptdump   packets, a line each
//!       ├─▶ ptxed    instructions, a line each
//!       └─▶ pugmark
//!             ├─▶ decode, bench     layers: what any layer of the decoder returns, counted; totals; check
//!             ├─▶ walk              calls and returns, with names from symbols
//!             │     └─▶ timeline, flamegraph, last, calls, diff, report --children, script --call-trace
//!             ├─▶ report, script, coverage     what was executed, counted or listed
//!             └─▶ pmc, ibs, pebs, mem     counters and samples: no trace, or what lies in it
//!                                                                                  output: all that is printed
//!
//!  a program ─▶ pugmark/record     the command line of pugmark-recorder, which writes a folder
//! ```
//!
//! Folders import in one direction only: `session` from nothing here, `symbols` from `code` and `source`, `timeline`
//! from `source`, `source` from
//! `sideband` (whose code reads perf's records), `ptdump` and `ptxed` from `sideband`, `sideband` from `code`, all of
//! them from what the programs share (`args`, `file`, `number`, `text`, `output` and others).
//!
//! # Example
//!
//! One trace, shown as `ptdump` does and counted as `pugmark decode` does. Its code is a conditional jump over a NOP to
//! an indirect jump.
//!
//! ```
//! use pugmark_tools::ptdump::{self, PtdumpCommand};
//! use pugmark_tools::pugmark::{code::TracedCode, decode::{self, Layer}, progress::Progress};
//! use pugmark_tools::args::Args;
//!
//! let trace = [
//!     &[0x02, 0x82].repeat(8)[..],    // PSB
//!     &[0x99, 0x01, 0x02, 0x23],      // MODE.Exec: 64-bit code; PSBEND
//!     &[0x31, 0x00, 0x10],            // TIP.PGE: tracing begins at 1000h
//!     &[0x06, 0x01],                  // TNT: the jump was taken; TIP.PGD: tracing ends at the indirect jump
//! ]
//! .concat();
//!
//! let arguments = ["--no-offset", "trace.pt"].map(String::from);
//! let PtdumpCommand::Dump { options, .. } = PtdumpCommand::parse(Args::new(arguments))? else {
//!     panic!("not a request for packets");
//! };
//! let mut lines = vec![];
//! let errata = ptdump::errata(&options, &mut lines)?;
//! ptdump::dump(&trace, *options, errata, &mut lines)?;
//! let lines = String::from_utf8(lines)?;
//! let shown: Vec<_> = lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
//! let pge = "tip.pge 1: ????????????1000";
//! assert_eq!(shown, ["psb", "mode.exec cs.l", "psbend", pge, "tnt.8 !", "tip.pgd 0: ????????????????"]);
//!
//! let mut code = TracedCode::default();
//! code.add(0x1000, vec![0x75, 0x01, 0x90, 0xff, 0xe0]);
//! let totals =
//!     decode::decode(&trace, &code, Default::default(), Layer::Insns, false, &mut Progress::hidden());
//! assert_eq!((totals.packets, totals.instructions, totals.errors.len()), (6, 2, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod args;
pub mod code;
pub mod cpu;
pub mod description;
pub mod file;
pub mod number;
#[cfg(test)]
mod object_file;
pub mod output;
pub mod perf_clock;
pub mod processors;
pub mod ptdump;
pub mod ptxed;
pub mod pugmark;
pub mod session;
pub mod sideband;
pub mod source;
pub mod symbols;
pub mod text;
pub mod timeline;
