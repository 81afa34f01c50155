//! CFE (control-flow event) and EVD (event data): interrupts, exceptions, VM exits and the like by kind, and their
//! data.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Control Flow Event (CFE) Packet", "Event Data
//! (EVD) Packet".
//!
//! ```
//! use pugmark_decoder_core::packet::{Cfe, Packet};
//!
//! // An interrupt with vector 14; a FUP follows.
//! let (packet, _) = Packet::parse(&[0x02, 0x13, 0x81, 0x0e]).unwrap().unwrap();
//! assert_eq!(packet, Packet::Cfe(Cfe { kind: 1, vector: 14, ip: true }));
//! ```

use super::{EmitError, Parsed, emit::put};

/// A control-flow event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cfe {
    /// The type of event, 5 bits; emitted modulo 32.
    pub kind: u8,
    /// The vector, if the type has one.
    pub vector: u8,
    /// True if a FUP with the IP follows.
    pub ip: bool,
}

impl Cfe {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, kind, vector, ..] = bytes else { return Ok(None) };
        Ok(Some((Self { kind: kind & 0x1f, vector, ip: kind & 1 << 7 != 0 }, 4)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        put(out, &[0x02, 0x13, self.kind & 0x1f | u8::from(self.ip) << 7, self.vector])
    }
}

/// Data of a control-flow event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Evd {
    /// The type of `payload`, 6 bits; emitted modulo 64.
    pub kind: u8,
    /// The value.
    pub payload: u64,
}

/// The bits of EVD.Type.
const EVD_TYPES: u8 = 0x3f;

impl Evd {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, kind, a, b, c, d, e, f, g, h, ..] = bytes else { return Ok(None) };
        let payload = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Ok(Some((Self { kind: kind & EVD_TYPES, payload }, 11)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let [a, b, c, d, e, f, g, h] = self.payload.to_le_bytes();
        put(out, &[0x02, 0x53, self.kind & EVD_TYPES, a, b, c, d, e, f, g, h])
    }
}
