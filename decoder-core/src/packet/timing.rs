//! The timing packets: TSC (time-stamp counter), CBR (core:bus ratio), TMA (TSC/MTC alignment), MTC (mini time
//! counter) and CYC (cycle count).
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", the packets' sections.
//!
//! ```
//! use pugmark_decoder_core::packet::{Cyc, Packet};
//!
//! // 5 bits fit in the first byte, 7 in each further one.
//! assert_eq!(Packet::Cyc(Cyc { cycles: 31 }).len(), 1);
//! assert_eq!(Packet::Cyc(Cyc { cycles: 32 }).len(), 2);
//! ```

use super::{EmitError, Parsed, emit::put};
use crate::error::ErrorKind;

/// The TSC's low 56 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tsc {
    /// Below 2^56; emitted modulo 2^56.
    pub tsc: u64,
}

impl Tsc {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, a, b, c, d, e, f, g, ..] = bytes else { return Ok(None) };
        Ok(Some((Self { tsc: u64::from_le_bytes([a, b, c, d, e, f, g, 0]) }, 8)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let [a, b, c, d, e, f, g, _] = self.tsc.to_le_bytes();
        put(out, &[0x19, a, b, c, d, e, f, g])
    }
}

/// The ratio of the core clock to the bus clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cbr {
    /// The ratio.
    pub ratio: u8,
    /// Byte 3 of the packet, reserved: kept so that a packet re-emits as it was.
    pub reserved: u8,
}

impl Cbr {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, ratio, reserved, ..] = bytes else { return Ok(None) };
        Ok(Some((Self { ratio, reserved }, 4)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        put(out, &[0x02, 0x03, self.ratio, self.reserved])
    }
}

/// The crystal clock's counter and the core cycles since it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tma {
    /// Bits 15:0 of the crystal clock counter.
    pub ctc: u16,
    /// Fast counter, 9 bits; emitted modulo 2^9.
    pub fc: u16,
}

impl Tma {
    const OPCODE: [u8; 2] = [0x02, 0x73];

    /// Parses a TMA. Byte 4 and the bits above the fast counter must be zero; otherwise the error's value is bytes 6:4.
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, a, b, reserved, c, d, ..] = bytes else { return Ok(None) };
        let fc = u16::from_le_bytes([c, d]);
        if reserved != 0 || fc > 0x1ff {
            let value = u64::from(fc) << 8 | u64::from(reserved);
            return Err(ErrorKind::MalformedPacket { packet: "TMA", value });
        }
        Ok(Some((Self { ctc: u16::from_le_bytes([a, b]), fc }, 7)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let ([a, b], [c, d]) = (self.ctc.to_le_bytes(), (self.fc & 0x1ff).to_le_bytes());
        let [first, second] = Self::OPCODE;
        put(out, &[first, second, a, b, 0, c, d])
    }
}

/// Returns true if the bytes are a TMA with reserved bits set. By erratum SKZ84 that is eight bytes to be ignored.
pub(super) fn is_damaged_tma(bytes: &[u8]) -> bool {
    bytes.starts_with(&Tma::OPCODE) && Tma::parse(bytes).is_err()
}

/// Returns true if an apparent CYC is an OVF that by erratum SKD007 follows a stray first byte: the OVF's first byte,
/// `02`, looks like the CYC's second and last byte.
pub(super) fn is_ovf_by_skd007(bytes: &[u8]) -> bool {
    matches!(*bytes, [cyc, second, third, ..] if cyc & 0b111 == 0b111 && may_be_ovf_by_skd007(second, third))
}

/// Returns true if a CYC with a second byte may be such an OVF, by the two bytes after its first one.
///
/// The fast parser leaves these CYCs to the full parser with or without the erratum: without it they are very rare,
/// because a CYC would have to follow a CYC.
#[inline(always)]
pub(crate) const fn may_be_ovf_by_skd007(second: u8, third: u8) -> bool {
    second == 0x02 && third == 0xf3
}

/// Returns true if two consecutive CYCs look like such an OVF.
pub(super) fn are_ovf_by_skd007(first: Cyc, second: Cyc) -> bool {
    let mut bytes = [0; 2 * Cyc::MOST_BYTES];
    // There is room for both.
    let size = first.emit(&mut bytes).unwrap_or(0);
    let _ = second.emit(&mut bytes[size..]);
    is_ovf_by_skd007(&bytes)
}

/// Bits `MTCFreq+7:MTCFreq` of the crystal clock counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mtc {
    /// The eight bits.
    pub ctc: u8,
}

impl Mtc {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, ctc, ..] = bytes else { return Ok(None) };
        Ok(Some((Self { ctc }, 2)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        put(out, &[0x59, self.ctc])
    }
}

/// Core cycles since the last CYC packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cyc {
    /// The count; 5 + 7n bits in n + 1 bytes.
    ///
    /// Emitted in as few bytes as possible. A larger count than [`Cyc::MOST`] is emitted as [`Cyc::MOST`].
    pub cycles: u64,
}

impl Cyc {
    /// The largest count a packet holds: 61 bits, in nine bytes.
    pub const MOST: u64 = (1 << (5 + 7 * Self::FURTHER)) - 1;
    /// The number of bytes that can follow the first.
    const FURTHER: usize = 8;
    const MOST_BYTES: usize = 1 + Self::FURTHER;

    /// Parses a CYC. A ninth byte after the first is an error with that byte as its value.
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let [first, further @ ..] = bytes else { return Ok(None) };
        let mut cycles = u64::from(first >> 3);
        if first & 0b100 == 0 {
            return Ok(Some((Self { cycles }, 1)));
        }
        for (index, &byte) in further.iter().enumerate() {
            if index == Self::FURTHER {
                return Err(ErrorKind::MalformedPacket { packet: "CYC", value: u64::from(byte) });
            }
            cycles |= u64::from(byte >> 1) << (5 + 7 * index);
            if byte & 1 == 0 {
                return Ok(Some((Self { cycles }, index + 2)));
            }
        }
        Ok(None)
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let cycles = self.cycles.min(Self::MOST);
        // Both casts keep only the bits that go into that byte.
        let mut bytes = [(cycles << 3) as u8 | 0b11, 0, 0, 0, 0, 0, 0, 0, 0];
        let (mut rest, mut last) = (cycles >> 5, 0);
        while rest != 0 && last < Self::FURTHER {
            bytes[last] |= if last == 0 { 0b100 } else { 1 };
            last += 1;
            bytes[last] = (rest << 1) as u8;
            rest >>= 7;
        }
        put(out, &bytes[..=last])
    }
}
