//! Decodes Intel Processor Trace: reconstructs the instructions that a processor executed from the bytes that it wrote.
//!
//! The crate needs no heap, no I/O and no clock, so it runs in a kernel as well as in a tool. No input makes it panic
//! or loop forever. It is exact: it follows the manual in return compression, deferred TIPs, interrupts, filters,
//! overflows and the errata of processors.
//!
//! # The content of a trace
//!
//! The processor writes only what the code does not determine. The decoder follows the code ([`image`]); at a branch
//! that the code leaves open, the trace gives the outcome or target. A trace consists of **packets** of 1 to 16 bytes:
//!
//! | packet | content |
//! |---|---|
//! | TNT | for each of up to 47 conditional branches, if it was taken |
//! | TIP | the target address of an indirect branch, a return or an interrupt |
//! | FUP | the address of an event that the code does not show: an interrupt comes after a FUP |
//! | PSB | nothing, but its pattern of 16 bytes can be searched for: decoding starts here |
//! | OVF | packets were lost |
//! | TSC, TMA, MTC, CYC, CBR | the time ([`time`]) |
//!
//! The packets from a PSB to its PSBEND, the **PSB+**, give the state of the processor at this place.
//!
//! Addresses are **compressed**: a TIP has only the bytes that differ from the last address ([`last_ip`]). **Return
//! compression**: the processor traces a return to the address after its call as a taken branch in a TNT, without a
//! TIP; the decoder keeps a return stack to know the address.
//!
//! # The parts
//!
//! ```text
//!  bytes ─▶ packet ─▶ event ─▶ query ─▶ the caller follows the code itself
//!                       │
//!             image ────┤
//!             (code)    ├──▶ flow    an instruction at a time: exact, and the reference
//!                       ├──▶ block   a block at a time: instructions without an indirect branch between them
//!                       └──▶ block_cache   all of it to a sink, fast: instructions, blocks, edges
//!
//!  bytes in slices (a ring, a ToPA, what one interrupt found) ─▶ resume ─▶ the same sinks
//! ```
//!
//! | you want | use |
//! |---|---|
//! | to print or write packets | [`packet::Packets`], [`packet::Encoder`] |
//! | the meaning of several packets together, such as an interrupt | [`event::EventDecoder`] |
//! | the outcome of each branch, for an analysis that knows the code | [`query::QueryDecoder`] |
//! | each instruction, and to stop anywhere | [`flow::InsnDecoder`] |
//! | everything, fast | [`block::BlockDecoder::visit`] with a [`block_cache::ExecutionSink`] |
//! | a bitmap of edges, as fuzzers use it | [`block_cache::edges::EdgeMap`] |
//! | function calls and their depth | [`calls::Calls`] |
//! | the time of an instruction, with its bounds | [`time::Timeline`] |
//! | to decode while the processor continues writing | [`resume::BlockStream`] |
//!
//! Each decoder starts with `sync_forward`, which searches for the next PSB. After an [`Error`] it searches for the
//! next one; nothing before it is lost silently, since the error has the offset. A decoder for a real processor needs
//! its errata: [`config::Config::set_cpu`].
//!
//! # Example
//!
//! This writes a trace of six instructions, prints its packets, and follows it through the code.
//!
//! ```
//! use pugmark_decoder_core::block::BlockDecoder;
//! use pugmark_decoder_core::event::{Event, EventKind};
//! use pugmark_decoder_core::block_cache::{ExecutionSink, BlockCache, InstructionRun};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//! use pugmark_decoder_core::packet::{Encoder, Ip, ModeExec, Packet, Packets, Tnt};
//!
//! /// Collects what was executed.
//! #[derive(Default)]
//! struct Executed {
//!     addresses: Vec<u64>,
//!     events: Vec<EventKind>,
//! }
//!
//! impl ExecutionSink for Executed {
//!     const INSNS: bool = true;
//!
//!     fn insns(&mut self, insns: InstructionRun) {
//!         self.addresses.extend(insns);
//!     }
//!
//!     fn event(&mut self, event: &Event) {
//!         // A PSB+ repeats the state of the processor as events that are marked as status.
//!         if !event.status {
//!             self.events.push(event.kind);
//!         }
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // The bytes that the processor writes.
//!     let mut memory = [0; 64];
//!     let mut trace = Encoder::new(&mut memory);
//!     // Decoding can start here: 64-bit code, at 1000.
//!     trace.emit(&Packet::Psb)?;
//!     trace.emit(&Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false }))?;
//!     trace.emit(&Packet::Fup(Ip::SignExtend48(0x1000)))?;
//!     trace.emit(&Packet::PsbEnd)?;
//!     // The return at 1012 goes after its call (compressed), the branch at 1005 is not taken.
//!     trace.emit(&Packet::TntShort(Tnt { bits: 0b10, len: 2 }))?;
//!     // The indirect jump at 1007 goes to 1020. Its upper bytes are those of the last address.
//!     trace.emit(&Packet::Tip(Ip::Update16(0x1020)))?;
//!     // An interrupt comes before the instruction at 1021; what it leads to is not traced.
//!     trace.emit(&Packet::Fup(Ip::Update16(0x1021)))?;
//!     trace.emit(&Packet::TipPgd(Ip::Suppressed))?;
//!
//!     for packet in Packets::new(trace.trace()) {
//!         let (offset, packet) = packet?;
//!         println!("{offset:4x}  {packet:x?}");
//!     }
//!
//!     // The code that was executed.
//!     let main = [
//!         0xe8, 0x0b, 0, 0, 0, // 1000: call 1010
//!         0x74, 0xf9, // 1005: je 1000
//!         0xff, 0xe0, // 1007: jmp rax
//!     ];
//!     let function = [0x31, 0xc0, 0xc3]; // 1010: xor eax, eax; 1012: ret
//!     let target = [0x90, 0x90]; // 1020: nop; 1021: nop
//!     let space = AddressSpace::Any;
//!     let sections = [
//!         Section { base: 0x1000, bytes: &main, space },
//!         Section { base: 0x1010, bytes: &function, space },
//!         Section { base: 0x1020, bytes: &target, space },
//!     ];
//!
//!     // The cache keeps the code that was decoded, in memory of the caller. It can be used for the next trace too.
//!     let mut memory = [0; 2048];
//!     let mut cache = BlockCache::new(&mut memory);
//!     let mut executed = Executed::default();
//!     let mut decoder = BlockDecoder::new(trace.trace(), Image::new(&sections));
//!     while decoder.sync_forward().is_some() {
//!         if let Err(error) = decoder.visit(&mut cache, &mut executed) {
//!             println!("{error}; decoding goes on at the next PSB");
//!         }
//!     }
//!     assert_eq!(executed.addresses, [0x1000, 0x1010, 0x1012, 0x1005, 0x1007, 0x1020]);
//!     assert_eq!(executed.events, [EventKind::AsyncDisabled { at: 0x1021 }]);
//!     Ok(())
//! }
//! ```
//!
//! # Branch records and samples
//!
//! The older Branch Trace Store records each branch with both its addresses; [`bts`] converts the records to blocks and
//! instructions. [`pebs`] reads the samples of Processor Event Based Sampling, which share the Debug Store save area
//! ([`ds`]) with the branch records. [`ibs`] reads the samples of AMD's Instruction-Based Sampling.
//!
//! Source of these statements: SDM vol. 3, Intel Processor Trace.
#![no_std]
#![forbid(unsafe_code)]

pub mod block;
pub mod block_cache;
pub mod bts;
pub mod calls;
pub mod config;
pub mod ds;
pub mod errata;
mod error;
pub mod event;
pub mod flow;
pub mod hash;
pub mod ibs;
pub mod image;
pub mod insn;
mod keeper;
mod lost;
pub mod mode;
pub mod packet;
pub mod pebs;
mod psb;
pub mod query;
pub mod resume;
mod ret_stack;
pub mod sync;
pub mod time;

pub use error::{Error, ErrorKind};

/// Returns the number of repetitions of a test with random values: Miri takes a thousand times as long for each.
#[cfg(test)]
const fn rounds(elsewhere: u32) -> u32 {
    if cfg!(miri) { elsewhere.div_ceil(100) } else { elsewhere }
}

pub mod last_ip {
    //! The last IP: packets hold only the low bits of an address, and take the rest from the last IP sent. See
    //! [`LastIp`].

    pub use crate::packet::last_ip::{LastIp, NoIp};
}
