//! PTW: the operand of a PTWRITE instruction, with which software writes data into the trace.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "PTWRITE (PTW) Packet".
//!
//! ```
//! use pugmark_decoder_core::packet::{Packet, Ptw, PtwPayload};
//!
//! let (packet, _) = Packet::parse(&[0x02, 0x92, 1, 0, 0, 0]).unwrap().unwrap();
//! assert_eq!(packet, Packet::Ptw(Ptw { payload: PtwPayload::Four(1), ip: true }));
//! ```

use super::{EmitError, Parsed, emit::put};
use crate::error::ErrorKind;

/// The opcode in bits 4:0 of the second byte.
pub(super) const OPCODE: u8 = 0x12;

/// PTWRITE's operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ptw {
    /// The operand and its size.
    pub payload: PtwPayload,
    /// True if a FUP with PTWRITE's IP follows.
    pub ip: bool,
}

/// PTWRITE's operand by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PtwPayload {
    /// PayloadBytes 0.
    Four(u32),
    /// PayloadBytes 1.
    Eight(u64),
}

impl Ptw {
    /// Parses a PTW. PayloadBytes 2 and 3 are an error with that value.
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let [_, second, payload @ ..] = bytes else { return Ok(None) };
        let ip = second & 1 << 7 != 0;
        Ok(match (second >> 5 & 3, payload) {
            (0, &[a, b, c, d, ..]) => {
                Some((Self { payload: PtwPayload::Four(u32::from_le_bytes([a, b, c, d])), ip }, 6))
            }
            (1, &[a, b, c, d, e, f, g, h, ..]) => {
                let operand = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                Some((Self { payload: PtwPayload::Eight(operand), ip }, 10))
            }
            (0 | 1, _) => None,
            (reserved, _) => {
                return Err(ErrorKind::MalformedPacket { packet: "PTW", value: u64::from(reserved) });
            }
        })
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let second = OPCODE | u8::from(self.ip) << 7;
        match self.payload {
            PtwPayload::Four(operand) => {
                let [a, b, c, d] = operand.to_le_bytes();
                put(out, &[0x02, second, a, b, c, d])
            }
            PtwPayload::Eight(operand) => {
                let [a, b, c, d, e, f, g, h] = operand.to_le_bytes();
                put(out, &[0x02, second | 1 << 5, a, b, c, d, e, f, g, h])
            }
        }
    }
}
