//! Decodes Intel Processor Trace: from bytes to packets, from packets to events, and from events to the flow of
//! instructions. Packets can be written, too.
//!
//! The crate needs no heap, no I/O and no clock. No input makes it panic or loop forever. Each layer builds on the
//! one before it and can be used alone.
//!
//! **Packets** are the variable-length records that the processor writes. [`packet`] parses and emits them:
//!
//! ```
//! use pugmark_decoder_core::packet::{Encoder, Ip, ModeExec, Packet, Packets};
//!
//! let written = [
//!     Packet::Psb,
//!     Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false }),
//!     Packet::Fup(Ip::SignExtend48(0x1000)),
//!     Packet::PsbEnd,
//!     // An interrupt before the instruction at 1001.
//!     Packet::Fup(Ip::Update16(0x1001)),
//!     Packet::Tip(Ip::Update16(0x1003)),
//!     // Packet generation is disabled before the instruction at 1004.
//!     Packet::Fup(Ip::Update16(0x1004)),
//!     Packet::TipPgd(Ip::Suppressed),
//! ];
//! let mut memory = [0; 64];
//! let mut encoder = Encoder::new(&mut memory);
//! for packet in &written {
//!     encoder.emit(packet)?;
//! }
//!
//! let trace = encoder.trace();
//! let read: Result<Vec<_>, _> = Packets::new(trace).map(|packet| packet.map(|(_offset, packet)| packet)).collect();
//! assert_eq!(read?, written);
//! #
//! # use pugmark_decoder_core::event::{EventDecoder, EventKind};
//! # let mut events = EventDecoder::new(trace);
//! # events.sync_forward();
//! # let mut kinds = vec![];
//! # while let Some(event) = events.next()? {
//! #     if !event.status { kinds.push(event.kind); }
//! # }
//! # assert_eq!(kinds, [EventKind::AsyncBranch { from: 0x1001 }, EventKind::AsyncDisabled { at: 0x1004 }]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Events** are what several packets mean together, with their addresses ([`event`]). In the trace above the
//! interrupt and the end of tracing are events; the packets from PSB to PSBEND give the state to start from.
//!
//! The **instruction flow** is the path through the code, with the events on it ([`flow`]). A **piece** is a run of
//! it without a loss:
//!
//! ```
//! use pugmark_decoder_core::flow::{InsnDecoder, Pieces};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
//!     \x3d\x01\x10\x2d\x03\x10\x3d\x04\x10\x01";
//! let sections = [Section { base: 0x1000, bytes: &[0x90; 16], space: AddressSpace::Any }];
//! let mut pieces = Pieces::new(InsnDecoder::new(trace, Image::new(&sections)));
//! let mut addresses = vec![];
//! while let Some(piece) = pieces.next_with(|insn| addresses.push(insn.ip)) {
//!     println!("{} instructions, hash {:#018x}", piece.hash.count(), piece.hash.value());
//! }
//! assert_eq!(addresses, [0x1000, 0x1003]);
//! ```
//!
//! **Branch records** of the older Branch Trace Store describe the same flow ([`bts`]). [`pebs`] reads the samples of
//! Processor Event Based Sampling, which share the Debug Store save area ([`ds`]) with the branch records. [`ibs`]
//! reads the samples of AMD's Instruction-Based Sampling.
#![no_std]
#![forbid(unsafe_code)]

pub mod block;
pub mod bts;
pub mod calls;
pub mod config;
pub mod ds;
pub mod errata;
pub mod error;
pub mod event;
pub mod flow;
pub mod graph;
pub mod hash;
pub mod ibs;
pub mod image;
pub mod insn;
pub mod last_ip;
pub mod mode;
pub mod packet;
pub mod pebs;
pub mod query;
pub mod resume;
pub mod ret_stack;
pub mod sync;
pub mod time;

pub use error::{Error, ErrorKind};
pub use packet::Packet;
