//! TIP, TIP.PGE, TIP.PGD and FUP: packets whose payload is an instruction pointer (IP), compressed against the last
//! one. A TIP is the target of a branch, TIP.PGE and TIP.PGD enable and disable tracing, and a FUP is the source of an
//! interrupt or a similar event.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "IP Compression".
//!
//! ```
//! use pugmark_decoder_core::packet::{Ip, Packet};
//!
//! // A TIP with IPBytes 1: only bits 15:0 differ from the last IP.
//! let (packet, size) = Packet::parse(&[0x2d, 0x34, 0x12]).unwrap().unwrap();
//! assert_eq!((packet, size), (Packet::Tip(Ip::Update16(0x1234)), 3));
//! ```

use super::{EmitError, Parsed, emit::put};
use crate::error::ErrorKind;

/// The opcode of TIP in bits 4:0 of the first byte.
pub(super) const TIP: u8 = 0x0d;
/// The opcode of TIP.PGE in bits 4:0 of the first byte.
pub(super) const TIP_PGE: u8 = 0x11;
/// The opcode of TIP.PGD in bits 4:0 of the first byte.
pub(super) const TIP_PGD: u8 = 0x01;
/// The opcode of FUP in bits 4:0 of the first byte.
pub(super) const FUP: u8 = 0x1d;

const LOW_48: u64 = (1 << 48) - 1;

/// An IP as a packet carries it: the `IPBytes` field gives its number of bytes.
///
/// [`LastIp`](crate::last_ip::LastIp) converts between this form and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ip {
    /// IPBytes 0: no payload, the IP is out of context.
    Suppressed,
    /// IPBytes 1: bits 15:0; the rest as in the last IP. Below 2^16, emitted modulo 2^16.
    Update16(u64),
    /// IPBytes 2: bits 31:0; the rest as in the last IP. Below 2^32, emitted modulo 2^32.
    Update32(u64),
    /// IPBytes 3: bits 47:0, to be sign-extended. Held as in the packet: below 2^48, emitted modulo 2^48.
    SignExtend48(u64),
    /// IPBytes 4: bits 47:0; the rest as in the last IP. Below 2^48, emitted modulo 2^48.
    Update48(u64),
    /// IPBytes 6: all 64 bits.
    Full(u64),
}

impl Ip {
    /// Returns the IPBytes field, bits 7:5 of the packet's first byte.
    pub const fn ip_bytes(self) -> u8 {
        match self {
            Self::Suppressed => 0,
            Self::Update16(_) => 1,
            Self::Update32(_) => 2,
            Self::SignExtend48(_) => 3,
            Self::Update48(_) => 4,
            Self::Full(_) => 6,
        }
    }

    /// Parses the IP of a packet. `name` is the packet's name, for the error about IPBytes 5 and 7.
    pub(super) fn parse(bytes: &[u8], name: &'static str) -> Parsed<Self> {
        let [first, payload @ ..] = bytes else { return Ok(None) };
        Ok(match (first >> 5, payload) {
            (0, _) => Some((Self::Suppressed, 1)),
            (1, &[a, b, ..]) => Some((Self::Update16(u16::from_le_bytes([a, b]).into()), 3)),
            (2, &[a, b, c, d, ..]) => Some((Self::Update32(u32::from_le_bytes([a, b, c, d]).into()), 5)),
            (3, &[a, b, c, d, e, f, ..]) => {
                Some((Self::SignExtend48(u64::from_le_bytes([a, b, c, d, e, f, 0, 0])), 7))
            }
            (4, &[a, b, c, d, e, f, ..]) => {
                Some((Self::Update48(u64::from_le_bytes([a, b, c, d, e, f, 0, 0])), 7))
            }
            (6, &[a, b, c, d, e, f, g, h, ..]) => {
                Some((Self::Full(u64::from_le_bytes([a, b, c, d, e, f, g, h])), 9))
            }
            (1..=4 | 6, _) => None,
            (reserved, _) => {
                return Err(ErrorKind::MalformedPacket { packet: name, value: u64::from(reserved) });
            }
        })
    }

    /// Emits the packet with `opcode` in bits 4:0 of its first byte.
    pub(super) fn emit(self, opcode: u8, out: &mut [u8]) -> Result<usize, EmitError> {
        let (payload, size) = match self {
            Self::Suppressed => (0, 0),
            Self::Update16(low) => (low & 0xffff, 2),
            Self::Update32(low) => (low & 0xffff_ffff, 4),
            Self::SignExtend48(low) | Self::Update48(low) => (low & LOW_48, 6),
            Self::Full(ip) => (ip, 8),
        };
        let [a, b, c, d, e, f, g, h] = payload.to_le_bytes();
        put(out, &[self.ip_bytes() << 5 | opcode, a, b, c, d, e, f, g, h][..1 + size])
    }
}
