//! The bootable kernel that traces its own workloads: the part that needs no machine.
//!
//! The kernel boots in QEMU on the monitor, in KVM, or on a real processor. It runs real code, records it with the
//! driver, decodes the recording in place and prints the result, which the harness compares with the truth. The image
//! (`src/main.rs`) holds what needs a machine: entry, paging, traps, the serial port, the driver's sessions. This
//! library holds the rest, and its tests run on the host.
//!
//! # The parts
//!
//! ```text
//!  what the boot loader left
//!    └─▶ boot_info ─▶ regions        free physical memory; the image allocates from it
//!                  ├▶ command_line   which workloads, which source, how
//!                  └▶ symbols        the kernel's own functions, from its ELF file
//!
//!  the image's PMI handler, and its drain after a stop
//!    ├─▶ archive   trace bytes and the gaps between them     ┐  memory that was set aside before:
//!    └─▶ samples   typed values                              ┘  nothing is allocated while a unit runs
//!          │
//!          ▼   the code that was traced: code_section
//!    decode      a trace of Intel PT: pieces without a gap, their count and hash
//!    branches    branch records: the branches, and the instructions between them
//!    tally       samples by address
//!    histogram   which functions ran most
//!          │
//!          ▼
//!    expectation   what a workload is meant to lose ─▶ the image prints lines of pugmark-protocol
//!
//!  sinks        what each use of a trace costs
//!  panic_print   the message of a kernel that panics
//! ```
//!
//! # Example
//!
//! Decodes a trace with a gap. The bytes are written by hand here; in the image the driver passes them to the same
//! archive.
//!
//! ```
//! use pugmark_boot::archive::Archive;
//! use pugmark_boot::decode::decode;
//! use pugmark_boot::histogram::Histogram;
//! use pugmark_boot::symbols::{Function, Symbols};
//! use pugmark_decoder_core::image::{AddressSpace, Section};
//! use pugmark_kernel::drain::Sink;
//! use pugmark_kernel::loss::Gap;
//! use pugmark_protocol::{After, Line};
//!
//! // PSB; MODE.Exec: 64-bit code; FUP: tracing is on at 1000h; PSBEND; FUP and TIP.PGD: it ends before 1003h.
//! let psb = [0x02, 0x82].repeat(8);
//! let rest = [0x99, 0x01, 0x7d, 0, 0x10, 0, 0, 0, 0, 0x02, 0x23, 0x3d, 0x03, 0x10, 0x01];
//! let trace = [&psb[..], &rest].concat();
//!
//! let mut archive = Archive::with_room(4096);
//! archive.bytes(&trace);
//! archive.gap(Gap::Stop);
//! archive.bytes(&trace);
//!
//! // The code: sixteen NOPs.
//! let code = [Section { base: 0x1000, bytes: &[0x90; 16], space: AddressSpace::Any }];
//! let symbols = Symbols::from_functions([Function { address: 0x1000, size: 16, name: "nops" }]);
//! let mut histogram = Histogram::new(&symbols);
//! let decoded = decode(&archive, &code, &mut histogram);
//!
//! let pieces: Vec<_> = decoded.pieces.iter().map(|piece| (piece.after, piece.count)).collect();
//! assert_eq!(pieces, [(After::Start, 3), (After::Stop, 3)]);
//! let [(function, count)] = histogram.top(1)[..] else { panic!("no function ran") };
//! assert_eq!((function.name, count), ("nops", 6));
//!
//! // The line in which the kernel reports the second piece.
//! let line: Line = Line::Piece("nops", 1, decoded.pieces[1]);
//! assert!(line.to_string().starts_with("piece nops 1 count=3 hash=0x"));
//! assert!(line.to_string().ends_with("first=0x1000 last=0x1002 after=stop"));
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// The front page of the project, whose code is compiled as an example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct FrontPage;

pub mod archive;
pub mod boot_info;
pub mod branches;
pub mod code_section;
pub mod command_line;
pub mod decode;
pub mod expectation;
pub mod histogram;
pub mod panic_print;
pub mod regions;
pub mod samples;
pub mod sinks;
pub mod symbols;
pub mod tally;
