//! `ptdump` shows the packets of a trace and `ptxed` its instructions, with the options, output and messages of
//! libipt's programs, so that each can replace its counterpart.
//!
//! That is why their command lines and C's numbers are parsed by hand.
//!
//! # The parts
//!
//! ```text
//!  ptdump       packets, a line each
//!  ptxed        instructions, a line each; blocks, errors and what a second decoder says of each instruction
//!     │
//!  sideband     perf's records: shown beside a trace, and followed to the code of each process
//!  code         parts of files, each read once
//!  recording    the files that --image names
//!     │
//!  args, file, text     command lines, FILE[:FROM[-TO]], libipt's words for errors
//!     │
//!  pugmark_tools        perf's records, ELF files, names of processors
//! ```
//!
//! # Example
//!
//! ```
//! use pugmark_ipt_programs::{args::Args, ptdump::{self, PtdumpCommand}};
//!
//! let trace = [
//!     &[0x02, 0x82].repeat(8)[..],    // PSB
//!     &[0x99, 0x01, 0x02, 0x23],      // MODE.Exec: 64-bit code; PSBEND
//!     &[0x31, 0x00, 0x10],            // TIP.PGE: tracing begins at 1000h
//!     &[0x06, 0x01],                  // TNT: a jump was taken; TIP.PGD: tracing ends
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
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod args;
pub mod code;
pub mod file;
pub mod ptdump;
pub mod ptxed;
pub mod recording;
pub mod sideband;
pub mod text;
