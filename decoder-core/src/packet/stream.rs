//! PSB (where a decoder can start) and MNT (maintenance data). Neither describes the traced program.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Packet Stream Boundary (PSB) Packet", "Maintenance
//! (MNT) Packet".
//!
//! ```
//! use pugmark_decoder_core::packet::{Mnt, Packet};
//!
//! let bytes = [0x02, 0xc3, 0x88, 8, 7, 6, 5, 4, 3, 2, 1];
//! let (packet, _) = Packet::parse(&bytes).unwrap().unwrap();
//! assert_eq!(packet, Packet::Mnt(Mnt { payload: 0x0102_0304_0506_0708 }));
//! ```

use super::{EmitError, PSB, Parsed, emit::put};
use crate::error::ErrorKind;

/// Parses a PSB. The error's value is the first byte that differs from a PSB's.
pub(super) fn parse_psb(bytes: &[u8]) -> Parsed<()> {
    let Some(bytes) = bytes.first_chunk::<16>() else { return Ok(None) };
    if *bytes == PSB {
        return Ok(Some(((), PSB.len())));
    }
    let wrong =
        bytes.iter().zip(&PSB).find(|(byte, psb)| byte != psb).map_or(0, |(byte, _)| u64::from(*byte));
    Err(ErrorKind::MalformedPacket { packet: "PSB", value: wrong })
}

/// Eight bytes with a model-specific meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mnt {
    /// The payload.
    pub payload: u64,
}

impl Mnt {
    /// The third opcode byte, after `02 c3`.
    pub(super) const THIRD: u8 = 0x88;

    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        match *bytes {
            [_, _, _, a, b, c, d, e, f, g, h, ..] => {
                Ok(Some((Self { payload: u64::from_le_bytes([a, b, c, d, e, f, g, h]) }, 11)))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let [a, b, c, d, e, f, g, h] = self.payload.to_le_bytes();
        put(out, &[0x02, 0xc3, Self::THIRD, a, b, c, d, e, f, g, h])
    }
}
