//! Decodes a trace that comes in slices: a ring in two pieces, the regions of a ToPA, the data of one PMI.
//!
//! A stream takes slices in order, cut anywhere: in the middle of a packet, of a PSB+, or of packets that belong
//! together. It passes to its sink exactly what a decoder of the whole trace would pass: items, events, times, and the
//! offsets of events and errors, which count from the start of the stream. Between two slices the stream borrows
//! nothing of the trace, so the processor may overwrite a slice as soon as [`decode`](BlockStream::decode) has
//! returned. No slice is copied, except the bytes at its end that mean nothing without the next slice; they go into
//! memory of the caller.
//!
//! | stream | passes on | to |
//! |---|---|---|
//! | [`PacketStream`] | packets | [`PacketSink`](crate::packet::PacketSink) |
//! | [`BranchEventStream`] | outcomes, targets, events | [`BranchEventSink`](crate::query::BranchEventSink) |
//! | [`BlockStream`] | instructions, blocks, edges, events | [`ExecutionSink`](crate::block_cache::ExecutionSink) |
//!
//! After an error a stream continues at the next PSB. Errors and gaps are passed to the sink and counted. The calls
//! `gap` and `finish` decode the bytes kept of the last slice.
//!
//! ```
//! use pugmark_decoder_core::config::Config;
//! use pugmark_decoder_core::event::Event;
//! use pugmark_decoder_core::block_cache::{ExecutionSink, BlockCache, InstructionRun};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//! use pugmark_decoder_core::resume::{BlockStream, Kept};
//!
//! /// Collects the addresses of instructions.
//! #[derive(Default)]
//! struct Addresses(Vec<u64>);
//!
//! impl ExecutionSink for Addresses {
//!     const INSNS: bool = true;
//!
//!     fn insns(&mut self, insns: InstructionRun) {
//!         self.0.extend(insns);
//!     }
//!
//!     fn event(&mut self, _: &Event) {}
//! }
//!
//! // 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000
//! let code = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, not taken)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x0c";
//!
//! let (mut memory, mut kept) = ([0; 4096], <Kept>::new());
//! let mut cache = BlockCache::new(&mut memory);
//! let mut sink = Addresses::default();
//! let mut stream = BlockStream::new(Image::new(&sections), Config::new(), &mut kept);
//! // One buffer for all slices, as if the processor wrote them there.
//! let mut buffer = [0; 5];
//! for slice in trace.chunks(buffer.len()) {
//!     buffer[..slice.len()].copy_from_slice(slice);
//!     stream.decode(&buffer[..slice.len()], &mut cache, &mut sink);
//! }
//! stream.finish(&mut cache, &mut sink);
//! assert_eq!((sink.0, stream.errors()), (vec![0x1000, 0x1002, 0x1005, 0x1006, 0x1000, 0x1002], 0));
//! ```
//!
//! # One buffer for many traces
//!
//! A [`BlockCache`](crate::block_cache::BlockCache) outlives traces and their buffers, and so does a stream. A fuzzing
//! loop records each run into the same buffer, and decodes only code that it has not seen before:
//!
//! ```
//! use pugmark_decoder_core::config::Config;
//! use pugmark_decoder_core::block_cache::{BlockCache, edges::{EDGES, EdgeMap}};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//! use pugmark_decoder_core::resume::{BlockStream, Kept};
//!
//! /// Stands for a processor, which traces a run of the program under test: returns how many bytes it wrote.
//! fn trace_run(buffer: &mut [u8], taken: bool) -> usize {
//!     // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT, FUP (1002), TIP.PGD
//!     let trace = b"\
//!         \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
//!         \x04\x3d\x02\x10\x01";
//!     buffer[..trace.len()].copy_from_slice(trace);
//!     buffer[27] |= u8::from(taken) << 1;
//!     trace.len()
//! }
//!
//! // 1000: jz 1002; 1002: nop
//! let sections = [Section { base: 0x1000, bytes: &[0x74, 0x00, 0x90], space: AddressSpace::Any }];
//! let (mut memory, mut kept, mut counts) = (vec![0; 4096], <Kept>::new(), [0; EDGES]);
//! let mut cache = BlockCache::new(&mut memory);
//! let mut stream = BlockStream::new(Image::new(&sections), Config::new(), &mut kept);
//! let mut buffer = [0; 4096];
//! for run in 0..4 {
//!     let written = trace_run(&mut buffer, run % 2 == 0);
//!     let mut edges = EdgeMap::<true>::new(&mut counts);
//!     stream.decode(&buffer[..written], &mut cache, &mut edges);
//!     stream.finish(&mut cache, &mut edges);
//! }
//! assert_eq!(stream.errors(), 0);
//! // The code was decoded in the first run.
//! assert_eq!(counts.iter().map(|count| u32::from(*count)).sum::<u32>(), 4);
//! assert_eq!(cache.statistics().built, 1);
//! ```
//!
//! # Bytes that are kept of a slice
//!
//! At the end of a slice a decoder keeps its state, which is small and of fixed size, and the bytes that it will read
//! again or has not read:
//!
//! - up to 15 bytes of a packet that the cut divides, and 15 before it, because a PSB may begin inside a damaged
//!   packet;
//! - a PSB+ whose end is missing, because only the whole PSB+ tells if tracing is on and where;
//! - an OVF and the packets after it, up to one that tells if tracing is on;
//! - the last PSB+ for a while if no instruction was executed since, to restart there after an error.
//!
//! Outcomes, incomplete events and return addresses are in the state, and keep no bytes. Memory limits how much of a
//! PSB+, an OVF and the last PSB+ the decoder keeps. It divides its memory up when it is created: with `N` bytes it can
//! look at least `N / 2 - 200` bytes ahead. A PSB+ has some fifty bytes, and a hundred with all optional packets. A
//! PSB+ longer than the limit is an error, [`LooksTooFar`](crate::ErrorKind::LooksTooFar), wherever the cuts are, and
//! decoding continues at the next PSB. If only timing packets follow an OVF for that long, tracing is off: if it were
//! on, a FUP would follow at once.

mod blocks;
mod branch_events;
mod kept;
mod packets;
mod tail;

pub use blocks::{BlockStream, SavedStream};
pub use branch_events::BranchEventStream;
pub use kept::Kept;
pub use packets::PacketStream;

pub use crate::lost::Lost;

/// Enough memory, in bytes, to keep parts of slices without losing packets while much else is recorded: see the
/// [module's documentation](self).
pub const KEPT: usize = 4096;
