//! TNT (Taken/Not-taken): one bit for each conditional branch and each compressed return.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Taken/Not-taken (TNT) Packet".
//!
//! ```
//! use pugmark_decoder_core::packet::{Packet, Tnt};
//!
//! // The highest set bit above the opcode ends the outcomes: taken, not taken.
//! let (packet, _) = Packet::parse(&[0b0000_1100]).unwrap().unwrap();
//! assert_eq!(packet, Packet::TntShort(Tnt { bits: 0b10, len: 2 }));
//! let Packet::TntShort(tnt) = packet else { unreachable!() };
//! assert!(tnt.outcomes().eq([true, false]));
//! ```

use super::{EmitError, Packet, Parsed, emit::put};
use crate::error::ErrorKind;

/// Outcomes of conditional branches and compressed returns, oldest in the highest bit of `bits` below `len`.
///
/// When emitted, bits at and above `len` are ignored. Zero outcomes, or more than the packet holds, are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tnt {
    /// The outcomes: bit `len - 1` is the oldest, bit 0 the youngest; 1 is taken. Zero above `len`.
    pub bits: u64,
    /// The number of outcomes: 1 to 6 in a short packet, 1 to 47 in a long one.
    pub len: u8,
}

impl Tnt {
    /// Maximum number of outcomes in a short packet.
    pub const SHORT: u8 = 6;
    /// Maximum number of outcomes in a long packet.
    pub const LONG: u8 = 47;

    /// No outcomes yet; add them with [`push`](Self::push).
    pub const EMPTY: Self = Self { bits: 0, len: 0 };

    /// Adds the youngest outcome. Returns `false` without adding it if a long packet can hold no more.
    pub const fn push(&mut self, taken: bool) -> bool {
        if self.len >= Self::LONG {
            return false;
        }
        *self = Self { bits: self.bits << 1 | taken as u64, len: self.len + 1 };
        true
    }

    /// Returns the smaller packet that holds the outcomes.
    #[must_use]
    pub const fn packet(self) -> Packet {
        if self.len <= Self::SHORT { Packet::TntShort(self) } else { Packet::TntLong(self) }
    }

    /// Iterates over the outcomes, oldest first; `true` is taken.
    ///
    /// `for_each`, and everything else that folds, is faster than a `for` loop.
    #[inline(always)]
    pub fn outcomes(self) -> impl Iterator<Item = bool> {
        Outcomes(self)
    }

    /// Returns the outcome in that bit; bits above 63 wrap around.
    #[inline(always)]
    const fn outcome(self, bit: u8) -> bool {
        self.bits >> (bit & 63) & 1 != 0
    }

    /// Splits the stop bit from the outcomes below it.
    pub(crate) fn from_payload(payload: u64) -> Result<Self, ErrorKind> {
        match payload.checked_ilog2() {
            None | Some(0) => Err(ErrorKind::MalformedPacket { packet: "TNT", value: payload }),
            // A payload has at most 48 bits, so the stop bit's number fits.
            Some(stop) => Ok(Self { bits: payload ^ 1 << stop, len: stop as u8 }),
        }
    }

    fn to_payload(self, most: u8) -> Result<u64, EmitError> {
        match self.len {
            len if (1..=most).contains(&len) => Ok(self.bits & ((1 << len) - 1) | 1 << len),
            len => Err(EmitError::Outcomes(len)),
        }
    }

    pub(super) fn parse_short(first: u8) -> Result<Self, ErrorKind> {
        Self::from_payload(u64::from(first >> 1))
    }

    pub(super) fn parse_long(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, a, b, c, d, e, f, ..] = bytes else { return Ok(None) };
        Ok(Some((Self::from_payload(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))?, 8)))
    }

    pub(super) fn emit_short(self, out: &mut [u8]) -> Result<usize, EmitError> {
        // The payload has at most seven bits, so the shifted value fits.
        put(out, &[(self.to_payload(Self::SHORT)? << 1) as u8])
    }

    pub(super) fn emit_long(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let [a, b, c, d, e, f, ..] = self.to_payload(Self::LONG)?.to_le_bytes();
        put(out, &[0x02, 0xa3, a, b, c, d, e, f])
    }
}

/// An iterator over outcomes that are left. A `len` above 64 means 64.
struct Outcomes(Tnt);

impl Outcomes {
    const fn len(&self) -> u8 {
        if self.0.len > 64 { 64 } else { self.0.len }
    }
}

impl Iterator for Outcomes {
    type Item = bool;

    #[inline(always)]
    fn next(&mut self) -> Option<bool> {
        self.0.len = self.len().checked_sub(1)?;
        Some(self.0.outcome(self.0.len))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len().into(), Some(self.len().into()))
    }

    #[inline(always)]
    fn fold<B, F: FnMut(B, bool) -> B>(self, init: B, mut add: F) -> B {
        let tnt = self.0;
        // Most short packets are full, and need no loop.
        if tnt.len == Tnt::SHORT {
            let folded = add(init, tnt.outcome(5));
            let folded = add(folded, tnt.outcome(4));
            let folded = add(folded, tnt.outcome(3));
            let folded = add(folded, tnt.outcome(2));
            let folded = add(folded, tnt.outcome(1));
            return add(folded, tnt.outcome(0));
        }
        let len = self.len();
        // The oldest outcome becomes the highest bit, which is the number's sign.
        let (mut folded, mut left) = (init, tnt.bits.wrapping_shl(64 - u32::from(len)) as i64);
        for _ in 0..len {
            folded = add(folded, left < 0);
            left <<= 1;
        }
        folded
    }
}
