//! Splits a trace into contiguous runs of instructions and reports the reason for each gap between them.
//!
//! Not every gap is a loss. If an address filter, a privilege-level filter or the driver disabled packet generation and
//! enabled it again, nothing that was to be traced is missing, and the run continues. A run ends where packets were
//! lost (OVF), where a TraceStop region stopped the trace for good, and where the decoder had to skip to the next PSB.
//!
//! ```
//! use pugmark_decoder_core::flow::{After, InsnDecoder, Pieces};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! let sections = [Section { base: 0x1000, bytes: &[0x90; 16], space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, FUP (1003), TIP.PGD
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
//!     \x3d\x03\x10\x01";
//! let mut pieces = Pieces::new(InsnDecoder::new(trace, Image::new(&sections)));
//! let piece = pieces.next().unwrap();
//! assert_eq!((piece.after, piece.first, piece.last, piece.hash.count()), (After::Start, 0x1000, 0x1002, 3));
//! assert_eq!(pieces.next(), None);
//! assert_eq!(pieces.errors(), 0);
//! ```

use super::{ExecutedInsn, FlowItem, InsnDecoder};
use crate::{
    error::Error,
    event::{EventKind, is_aside, is_state},
    hash::AddressHash,
    packet::{Packet, Packets},
};

/// A run of instructions without loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The reason why the previous run ended.
    pub after: After,
    /// The address of the first instruction.
    pub first: u64,
    /// The address of the last instruction.
    pub last: u64,
    /// Count and hash of all its instructions.
    pub hash: AddressHash,
}

/// The cause of the gap before a [`Piece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// No gap: the trace begins with the piece.
    Start,
    /// The trace begins with packets that cannot be decoded without the packets before them.
    Psb,
    /// The start of the trace was overwritten.
    Wrap,
    /// An OVF.
    Overflow,
    /// A TraceStop region stopped the trace.
    Stop,
    /// An undecodable part of the trace, up to the next PSB.
    Error(Error),
}

/// The pieces of a trace, in order.
///
/// The iterator omits pieces without instructions.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    decoder: InsnDecoder<'a>,
    after: Option<After>,
    synced: bool,
    errors: u64,
}

impl<'a> Pieces<'a> {
    /// Creates the iterator for a trace that was recorded from its start.
    #[must_use]
    pub fn new(decoder: InsnDecoder<'a>) -> Self {
        Self { decoder, after: None, synced: false, errors: 0 }
    }

    /// Creates the iterator for a trace whose start was overwritten by its end.
    #[must_use]
    pub fn wrapped(decoder: InsnDecoder<'a>) -> Self {
        Self { after: Some(After::Wrap), ..Self::new(decoder) }
    }

    /// Returns how many times decoding had to skip to the next PSB.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Returns the cause of the gap before the next instructions, or, if there are none, how the trace ended.
    #[must_use]
    pub fn after(&self) -> Option<After> {
        self.after
    }

    /// Returns the decoder.
    #[must_use]
    pub fn decoder(&self) -> &InsnDecoder<'a> {
        &self.decoder
    }

    /// Returns the next piece, like [`next`](Iterator::next); `visit` sees each of its instructions.
    pub fn next_with(&mut self, mut visit: impl FnMut(&ExecutedInsn)) -> Option<Piece> {
        let mut piece: Option<Piece> = None;
        loop {
            if !self.synced && !self.sync() {
                return piece;
            }
            let lost = match self.decoder.next() {
                Ok(Some(FlowItem::Insn(insn))) => {
                    visit(&insn);
                    let after = self.after.unwrap_or(After::Start);
                    let hash = AddressHash::new();
                    let piece = piece.get_or_insert(Piece { after, first: insn.ip, last: insn.ip, hash });
                    piece.last = insn.ip;
                    piece.hash.add(insn.ip);
                    continue;
                }
                Ok(Some(FlowItem::Event(event))) => match event.kind {
                    EventKind::Overflow => After::Overflow,
                    EventKind::Stop => After::Stop,
                    _ => continue,
                },
                Ok(None) => return piece,
                Err(error) => {
                    self.synced = false;
                    self.errors += 1;
                    After::Error(error)
                }
            };
            self.after = Some(lost);
            if piece.is_some() {
                return piece;
            }
        }
    }

    fn sync(&mut self) -> bool {
        let Some(psb) = self.decoder.resync() else { return false };
        self.synced = true;
        let trace = self.decoder.trace();
        self.after.get_or_insert_with(|| if begins_with(trace, psb) { After::Start } else { After::Psb });
        true
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        self.next_with(|_| {})
    }
}

/// Returns true if the trace begins with the PSB at `psb`: before that come only packets that a processor sends when
/// packet generation is enabled.
fn begins_with(trace: &[u8], psb: u64) -> bool {
    let mut before = Packets::new(trace).take_while(|packet| !matches!(packet, Ok((at, _)) if *at >= psb));
    before.all(|packet| match packet {
        Ok((_, Packet::TipPge(_) | Packet::Psb)) => true,
        Ok((_, packet)) => is_aside(&packet) || is_state(&packet),
        Err(_) => false,
    })
}
